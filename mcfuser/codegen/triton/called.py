"""How the kernels of a source are called, and what that asks of their text."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.codegen.triton.frame import TAB

WAITING = ("from triton.language.extra import cuda",)
"""What a source imports whose kernels wait."""


@dataclass(frozen=True, slots=True)
class Called:
    """The `pointers` that kernels of a source may take, to tensors and workspaces; and whether they
    are `dependent`: their blocks may start while kernels ahead of theirs still run, and so wait for
    these to end (CUDA's programmatic dependent launch)."""

    pointers: tuple[str, ...]
    dependent: bool = False


def waited(called: Called) -> list[str]:
    """The lines before the first access to memory. Whatever ran before has ended then, and what it
    wrote is visible; the kernel behind may start, and waits in turn."""
    if not called.dependent:
        return []
    return [f"{TAB}cuda.gdc_wait()", f"{TAB}cuda.gdc_launch_dependents()"]
