"""Imports kernels from a file that others wrote, in a process with limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcfuser.errors import InputError
from mcfuser.process.confined import Limits, Stopped, run
from mcfuser.tune.progress import Listener, Progress, unheard

_MODULE = "mcfuser_service.import_child"
_START = 60.0
"""Seconds that the process may take to start, and a line besides what its kernel may take."""
DEATHS = 20
"""Lines that may end the process before the import is given up."""


@dataclass(frozen=True, slots=True)
class ImportedLine:
    """What became of one line of a file; `reason` is a sentence, empty where it was kept."""

    line: int
    outcome: Literal["kept", "known", "refused"]
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Imported:
    """What became of the lines of a file: the number of kernels that were `kept`, of those that
    were `known`, and each line that was `refused`, by its number, with the reason."""

    kept: int = 0
    known: int = 0
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, line: ImportedLine) -> None:
        match line.outcome:
            case "kept":
                self.kept += 1
            case "known":
                self.known += 1
            case "refused":
                self.refused[line.line] = line.reason

    def to_json(self) -> dict[str, Any]:
        refused = [{"line": n, "reason": words} for n, words in self.refused.items()]
        return {"kept": self.kept, "known": self.known, "refused": refused}


class _Stuck(Exception):
    """A line has taken too long."""


def import_kernels(
    file: Path,
    store: str,
    memory: int,
    seconds: float,
    listener: Listener = unheard,
    tell: Callable[[ImportedLine], None] = lambda line: None,
    check: Callable[[], None] = lambda: None,
    niceness: int = 0,
) -> Imported:
    """Imports the kernels of a file to the database with the URL `store`.

    Every process that this takes may use `memory` bytes, and every kernel `seconds`; it is nicer
    than this one by `niceness`. A line that ends its process, or takes longer, is refused, and the
    next ones are read by another process. `listener` is told of each line as it is begun, and
    `tell` is given each that is done; `check` is called ten times a second and may raise an
    exception to end the import. Raises InputError where the
    file as a whole cannot be read, or DEATHS lines have ended their process.
    """
    done, deaths = Imported(), 0
    reading = _Reading(done, seconds, listener, tell, check)
    while True:
        asked = {
            "file": str(file.absolute()), "after": reading.line, "store": store, "seconds": seconds
        }  # fmt: skip
        reading.begun, first = time.monotonic(), reading.line
        try:
            limits = Limits(memory=memory)
            run(_MODULE, asked, limits, reading.told, reading.checked, niceness)
            return done
        except Stopped as stopped:
            why = f"it ends the process that builds it: {stopped}"
        except _Stuck:
            why = f"it took longer than {seconds:g} s"
        if reading.line == first:
            raise InputError(f"'{file}' was not imported: {why}")
        reading.ended(ImportedLine(reading.line, "refused", why))
        deaths += 1
        if deaths == DEATHS:
            raise InputError(
                f"the import of '{file}' was given up at line {reading.line}: {deaths} lines have "
                f"ended the process that read them, the last because {why}"
            )


@dataclass
class _Reading:
    """Where the import is."""

    done: Imported
    seconds: float
    listener: Listener
    tell: Callable[[ImportedLine], None]
    check: Callable[[], None]
    line: int = 0
    begun: float = 0.0

    def told(self, message: Mapping[str, Any]) -> None:
        self.line, self.begun = message["line"], time.monotonic()
        self.listener(Progress(f"import: line {self.line}"))
        if "outcome" in message:
            self.ended(ImportedLine(self.line, message["outcome"], message["words"]))

    def ended(self, line: ImportedLine) -> None:
        self.done.add(line)
        self.tell(line)

    def checked(self) -> None:
        self.check()
        if time.monotonic() > self.begun + self.seconds + _START:
            raise _Stuck
