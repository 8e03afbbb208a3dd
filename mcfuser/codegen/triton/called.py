"""How the kernels of a source are called, and what that asks of their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcfuser.codegen.triton.frame import TAB
from mcfuser.space.statement import Loop, Statement, Store

WAITING = ("from triton.language.extra import cuda",)
"""What a source imports whose kernels wait."""


NEXT = f"{TAB}cuda.gdc_launch_dependents()"
"""The line from which the next kernel may start, once every block has run it or has ended."""


@dataclass(frozen=True, slots=True)
class Called:
    """The `pointers` that kernels of a source may take, to tensors and workspaces; and whether they
    are `dependent`: their blocks may start while kernels ahead of theirs still run, and so wait for
    these to end (CUDA's programmatic dependent launch)."""

    pointers: tuple[str, ...]
    dependent: bool = False


def waited(called: Called) -> list[str]:
    """The lines before the first access to memory. Whatever ran before has ended then, and what it
    wrote is visible."""
    return [f"{TAB}cuda.gdc_wait()"] if called.dependent else []


def handover(called: Called, body: Sequence[Statement]) -> Statement | None:
    """The statement of a block's `body` before which the next kernel may start: its first store
    after all loops. None where the next kernel starts as the blocks end.

    Blocks that start early go where there is room at that moment. Where some blocks end long before
    others, the next kernel's would gather on few multiprocessors, and stay there; so it is let in
    when all of them have little left to do.
    """
    if not called.dependent:
        return None
    ends = max((i for i, s in enumerate(body, 1) if isinstance(s, Loop)), default=0)
    return next((s for s in body[ends:] if isinstance(s, Store)), None)
