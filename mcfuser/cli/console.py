"""What commands write on: standard output, standard error, and a line of progress there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A function to be told the stage, the candidates done and those in all, and a line on standard
    error that shows them. Where standard error is no terminal, a line is written for each stage
    once it is over, so that a mistake is told by its own sentence alone."""
    from rich.status import Status

    last = "start"
    with Status("starting", console=err) as status:

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal last
            words = f"{stage}: {done} of {total} candidates" if total > 1 else stage
            if err.is_terminal:
                status.update(words)
            elif last != "start" and stage.split(":")[0] != last.split(":")[0]:
                err.print(last, highlight=False)
            last = words

        yield tell
