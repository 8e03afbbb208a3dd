"""How far `mcfuser batch` is, and about how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcfuser.cli.console import about

if TYPE_CHECKING:
    from rich.console import Console

    from mcfuser.batch.remaining import Course

_A_SECOND = 4
"""How often the line on a terminal is written anew."""


@contextmanager
def shown(
    console: Console,
    course: Course,
    end: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[str], None]]:
    """Tells while the block runs how far a batch is, which is over at `end` (on the clock).

    The block calls the function with a line about each entry that is done. On a terminal a last
    line shows how many are done, and the time that is left; elsewhere each line ends with that.
    Where the time is not known, nothing is said of it.
    """

    def left() -> str | None:
        from mcfuser.batch.remaining import seconds_left

        now = clock()
        seconds = seconds_left(course, now)
        if seconds is not None and end is not None:
            seconds = min(seconds, end - now)
        return f"about {about(seconds)} left" if seconds is not None and seconds >= 1 else None

    def standing() -> str:
        done = f"{len(course.done)} of {len(course.forecasts)} done"
        return ", ".join(filter(None, (done, left())))

    def plain(words: str) -> None:
        said = words if console.is_terminal else "; ".join(filter(None, (words, left())))
        console.print(said, highlight=False, markup=False)

    if not console.is_terminal:
        yield plain
        return
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots")

    def line() -> Spinner:
        spinner.update(text=standing())
        return spinner

    # what other consoles print stays theirs: standard output may be a file
    with Live(
        console=console, get_renderable=line, refresh_per_second=_A_SECOND, transient=True,
        redirect_stdout=False, redirect_stderr=False,
    ):  # fmt: skip
        yield plain
