"""Runs a command of mcfuser in a process; its output goes to files, and its exit status counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mcfuser.process.death import Death
from mcfuser.process.supervised import Supervised

_POLITE = 1.0  # seconds that a process has to end by itself and remove its folders
_KEPT = 8192  # bytes of the end of its messages


def run_command(
    module: str,
    arguments: Sequence[str],
    output: Path,
    errors: Path,
    seconds: float,
    check: Callable[[], object] = lambda: None,
) -> Death | None:
    """Runs `main` of a module with `arguments`; None where it succeeds, else its death.

    Standard output is appended to the file `output`, and standard error, whose end becomes the
    death's `words`, to the file `errors`. The process is ended after `seconds`, or where `check`,
    which is called ten times a second, raises.
    """
    with errors.open("ab") as said, output.open("ab") as printed:
        child = Supervised(module, arguments, session=True, output=printed, errors=said)
        try:
            child.close_input()
            status = child.wait(time.monotonic() + seconds, check)
            death = child.death() if status is not None else Death("time")
        finally:
            child.end(_POLITE)
    return replace(death, words=_end_of(errors)) if status != 0 else None


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _KEPT))
        return file.read().decode(errors="replace")
