"""The consoles that commands write to, and progress on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console

from mcfuser.table import printable
from mcfuser.tune.progress import Listener, Note, Progress

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


def say(words: str) -> None:
    """Prints a line on standard output as it is."""
    out.print(words, highlight=False, markup=False)


_SEARCHED = ("measure", "compile")
"""The stages that count candidates."""


@contextmanager
def progress(clock: Callable[[], float] = time.monotonic) -> Iterator[Listener]:
    """Shows progress on standard error while the block runs.

    The block calls the function with what a compilation tells. On a terminal a line shows the stage
    that is under way, how far it is, the best time so far, and an estimate of the time that is
    left. Elsewhere a line is written when a stage is done, so that an error is not preceded by a
    line for the stage that failed.
    """
    from rich.status import Status

    last: _Stage | None = None
    with Status("starting", console=err) as status:

        def tell(told: Progress | Note) -> None:
            nonlocal last
            if isinstance(told, Note):
                return
            begun = last is None or str(told) != str(last.progress)
            if begun and last is not None and last.progress.stage != "start" and not terminal:
                err.print(last.line(clock()), highlight=False, markup=False)
            last = _Stage(told, clock() if begun or last is None else last.since)
            if terminal:
                status.update(_fitting(last.parts(clock()), err.width - len("⠋ ") - 1))

        terminal = err.is_terminal
        yield tell


def until(end: float, listener: Listener) -> Listener:
    """A listener that tells another one the time until `end` (time.monotonic) as what is left."""

    def tell(told: Progress | Note) -> None:
        if isinstance(told, Progress) and told.left is None:
            told = replace(told, left=max(0.0, end - time.monotonic()))
        listener(told)

    return tell


@dataclass(frozen=True, slots=True)
class _Stage:
    """The latest that was told of a stage, and since when it is under way (on the clock)."""

    progress: Progress
    since: float

    def parts(self, now: float) -> list[str]:
        """What is said of it on a terminal, the most important first."""
        told, left = self.progress, self._left(now)
        parts = [self._words()]
        if left is not None and left >= 1:
            parts.append(f"about {about(left)} left")
        if told.best is not None:
            parts.append(f"best {told.best * 1e6:.1f} us")
        if told.failed:
            parts.append(f"{told.failed} failed")
        if told.chain is not None:
            parts.append(f"'{printable(told.chain.name)}'")
        return parts

    def line(self, now: float) -> str:
        """What is said of it in a pipe, when it is done."""
        told = self.progress
        best = f", best {told.best * 1e6:.1f} us" if told.best is not None else ""
        left = f", about {about(told.left)} left" if told.left and told.left >= 1 else ""
        return f"{self._words()}{best}, {now - self.since:.1f} s{left}"

    def _words(self) -> str:
        told = self.progress
        counted = " candidates" if told.stage in _SEARCHED else ""
        return f"{told}: {told.done} of {told.total}{counted}" if told.total > 1 else str(told)

    def _left(self, now: float) -> float | None:
        """Seconds until all is done, as was told; else, of work that is done one by one, as many as
        it took until now for each that is left. Few candidates of a search are ever tried."""
        told = self.progress
        if told.left is not None or told.stage in _SEARCHED or not told.done:
            return told.left
        return (now - self.since) / told.done * (told.total - told.done)


def _fitting(parts: list[str], width: int) -> str:
    """As many of the parts as fit in a line, in their order."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + 2 <= width:
            line += f", {part}"
    return line


def about(seconds: float) -> str:
    """A time of seconds, rounded as estimates are."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
