"""`mcfuser batch` with a pretended compiler: `python batch_slowly.py ZOO -o FOLDER ..`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from mcfuser.batch import entry, remote, run, server, state
from mcfuser.cli.command import main

AWAY = {"nvidia/l4": "no GPU is at hand"}


def target(name: str) -> run.Target:
    return run.Target(name, AWAY.get(name), "here")


@contextmanager
def pretended() -> Iterator[None]:
    """Batches compile nothing meanwhile, and poll often."""
    changed: list[tuple[Any, str, Any]] = [
        (entry, "MODULE", "tests.support.batch_pretended"),
        (run, "_target", target),
        (remote, "POLL", 0.05),
        (server, "FIRST", 0.5),
        (state, "revision", lambda: "1"),  # the same for a second run, even while it is edited
    ]
    patches = [patch.object(where, name, value) for where, name, value in changed]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


if __name__ == "__main__":
    with pretended():
        sys.argv.insert(1, "batch")
        main()
