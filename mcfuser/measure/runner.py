"""What the process that measures needs of a back end: the `Runner` protocol.

A back end names a module that has `open_device(name) -> Runner`. Everything that all kinds of
device share is in `mcfuser.measure.child`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mcfuser.measure.case import Case
from mcfuser.measure.request import KernelSequence, Measured, MeasureRequest
from mcfuser.space.reference import Array


class Unusable(Exception):
    """There is no device to measure on, in one sentence."""


@dataclass(frozen=True)
class Bound:
    """A program with its arguments: `run` computes once, and waits until that is done; `outputs`
    gives the chain's outputs afterwards, flat, in their types' bytes, by name."""

    run: Callable[[], None]
    outputs: Callable[[], Mapping[str, Array]]
    launches: Any = None
    """What a back end times, if that is not `run`."""


class Runner(Protocol):
    """The device at hand, in the process that measures.

    `resource` names the lease under which programs are timed. Where the runner `builds`, compiling
    keeps what is timed busy, and is done under a shared lease.
    """

    resource: str
    builds: bool

    def attend(self, case: Case) -> None:
        """Makes room for a case's inputs on the device; those of other cases may go."""
        ...

    def build(self, program: KernelSequence) -> Any:
        """What `bind` takes. Raises whatever a compiler throws."""
        ...

    def bind(self, built: Any, case: Case) -> Bound:
        """The program on a case's inputs; what it will write is poisoned, so that an element which
        nobody writes is found."""
        ...

    def timed(
        self, programs: Sequence[Bound], request: MeasureRequest
    ) -> tuple[list[list[float]], dict[str, Any]]:
        """Seconds a call of each program, some rounds of each, taken in turns; and the state of
        the device meanwhile."""
        ...

    def failed(self, error: Exception) -> Measured:
        """What an error of a program's is answered with. Raises the error where it is none of a
        program's."""
        ...
