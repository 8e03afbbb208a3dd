"""The part of a back end that works in the process that measures: the `Runner` protocol.

A back end names a module with a function `open_device(name) -> Runner`. What all kinds of device
have in common is in mcfuser.measure.child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mcfuser.measure.case import Case
from mcfuser.measure.request import KernelSequence, Measured, MeasureRequest
from mcfuser.space.reference import Array


class Unusable(Exception):
    """The device cannot be opened; the message is one sentence that says why."""


@dataclass(frozen=True)
class Bound:
    """A program with its arguments.

    `run` runs it once and waits for its end. `outputs` then gives the chain's outputs by name,
    flat, as their types store them.
    """

    run: Callable[[], None]
    outputs: Callable[[], Mapping[str, Array]]
    launches: Any = None
    """What the back end times in place of `run`, if anything."""
    compiled: float | None = None
    """Seconds of a core in which its kernels were compiled, if a module's kernels are compiled so,
    too."""


class Runner(Protocol):
    """The device that programs are timed on.

    `resource` names the lease under which they are timed. A runner that `builds` compiles programs
    in this process, on the device that is timed: it does so under a shared lease.
    """

    resource: str
    builds: bool

    def attend(self, case: Case) -> None:
        """Says that the following programs are checked on a case; the inputs of other cases may be
        freed."""
        ...

    def build(self, program: KernelSequence) -> Any:
        """The program, compiled, in the form that `bind` takes. Raises what the compiler raises."""
        ...

    def bind(self, built: Any, case: Case) -> Bound:
        """The program with a case's inputs. Its outputs are filled with NaN first, so that elements
        which it does not write are noticed."""
        ...

    def timed(
        self, programs: Sequence[Bound], request: MeasureRequest
    ) -> tuple[list[list[float]], dict[str, Any]]:
        """The seconds a call of each program, [program][round], interleaved; and the state of the
        device meanwhile."""
        ...

    def failed(self, error: Exception) -> Measured:
        """The answer for a program that raised `error`. Raises it again where no program is the
        cause."""
        ...
