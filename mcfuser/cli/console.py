"""The consoles that commands write to, and a progress line on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from mcfuser.tune.progress import Listener, Note, Progress

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Listener]:
    """Shows progress on standard error while the block runs.

    The block calls the function with what a compilation tells. Where standard error is no terminal,
    a line is written when a stage is done, so that an error is not preceded by a line for the stage
    that failed.
    """
    from rich.status import Status

    last = "start"
    with Status("starting", console=err) as status:

        def tell(told: Progress | Note) -> None:
            nonlocal last
            if isinstance(told, Note):
                return
            stage = str(told)
            words = f"{stage}: {told.done} of {told.total} candidates" if told.total > 1 else stage
            if err.is_terminal:
                status.update(words)
            elif last != "start" and stage.split(":")[0] != last.split(":")[0]:
                err.print(last, highlight=False)
            last = words

        yield tell
