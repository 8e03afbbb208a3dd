"""One piece of work in a process with limits, which can be ended at any time.

The child's side is mcfuser.process.confinement; the messages are in mcfuser.process.messages.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, assert_never

from mcfuser import errors
from mcfuser.process.death import Death, Why
from mcfuser.process.limits import UNLIMITED, Limits
from mcfuser.process.messages import Answered, Exhausted, Refused, Told, from_json
from mcfuser.process.supervised import Supervised

__all__ = ["Confined", "Limits", "Stopped", "run"]

_MEMORY = "it needed more memory than it may have"

Tell = Callable[[Mapping[str, Any]], None]


class Stopped(Exception):
    """The work ended without an answer: the reason as a word (`why`) and as a sentence (the
    message), and the process's last words.

    After a death, `fault` says that the process would die again (Death.fault), and `outside` that
    it was killed and is not to blame (Death.outside).
    """

    def __init__(
        self, why: Why, sentence: str, words: str = "", fault: bool = False, outside: bool = False
    ) -> None:
        super().__init__(sentence)
        self.why = why
        self.words = words
        self.fault = fault
        self.outside = outside


class Confined:
    """A process that does one piece of work; a context manager that ends it.

    It calls `answer(request, tell)` of the named module, which returns a JSON object, may call
    `tell` with JSON objects before, and may raise InputError. The process starts at once and
    imports the module. It works in an empty folder and keeps temporary files in `scratch`. It is
    nicer than its parent by `niceness` (nice(2)).
    """

    def __init__(self, module: str, limits: Limits = UNLIMITED, niceness: int = 0) -> None:
        self.limits = limits
        self._child = Supervised(
            "mcfuser.process.confinement", [module], limits, scratch=True, session=True,
            niceness=niceness,
        )  # fmt: skip
        assert self._child.scratch is not None
        self.scratch: Path = self._child.scratch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def alive(self) -> bool:
        return self._child.alive

    def end(self) -> None:
        """Kills the process and all processes that it started."""
        self._child.end()

    def run(
        self,
        request: Mapping[str, Any],
        tell: Tell = lambda message: None,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """The answer to a request; it may be called once.

        `tell` is called with the messages of the work. `check` is called ten times a second and may
        raise an exception to end the wait. Raises the InputError that the work raised, or Stopped.
        """
        wall = self.limits.wall
        until = time.monotonic() + wall if wall is not None else math.inf
        death = self._child.write(json.dumps(request).encode() + b"\n", until)
        if death is not None:
            raise _stopped(death, self.limits)
        while True:
            line = self._child.line(until, check)
            if isinstance(line, Death):
                raise _stopped(line, self.limits)
            match message := from_json(line):
                case Told():
                    tell(message.message)
                case Answered():
                    return message.answer
                case Refused():
                    raise _refusal(message)
                case Exhausted():
                    raise Stopped("memory", _MEMORY)
                case _:
                    assert_never(message)


def run(
    module: str,
    request: Mapping[str, Any],
    limits: Limits,
    tell: Tell = lambda message: None,
    check: Callable[[], None] = lambda: None,
    niceness: int = 0,
) -> dict[str, Any]:
    """Does one piece of work in a new process; see `Confined`."""
    with Confined(module, limits, niceness) as confined:
        return confined.run(request, tell, check)


def _refusal(message: Refused) -> Exception:
    made: Exception = getattr(errors, message.kind, errors.InputError)(message.sentence)
    return made


def _stopped(death: Death, limits: Limits) -> Stopped:
    match death.why:
        case "time":
            sentence = f"it took longer than {limits.wall:.3g} s"
        case "processor":
            sentence = f"it took more than {limits.processor:.3g} s of processor time"
        case "memory":
            sentence = _MEMORY
        case "death":
            last = f": {death.last}" if death.last and not death.signalled else ""
            sentence = f"its process died of {death.manner}{last}"
        case _:
            assert_never(death.why)
    return Stopped(death.why, sentence, death.words, death.fault, death.outside)
