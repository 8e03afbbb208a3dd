"""Many GPU kernels compiled at once."""

from __future__ import annotations

from collections.abc import Sequence

from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.codegen.triton import TritonSource
from mcfuser.space.statement import Illegal


def compile_all(sources: Sequence[TritonSource], arch: str, workers: int) -> list[Binary | Illegal]:
    """Each source compiled, or the reason why not, by so many processes side by side."""
    with Compilers(workers) as compilers:
        made = dict(compilers.compile(sources, arch))
    return [made[i] for i in range(len(sources))]
