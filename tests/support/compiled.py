"""GPU kernels compiled side by side, and none twice in one process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar

from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers, Pending
from mcfuser.codegen.triton import TritonSource
from mcfuser.space.statement import Illegal


def compile_all(sources: Sequence[TritonSource], arch: str, workers: int) -> list[Binary | Illegal]:
    """Each source compiled, or the reason why not, by so many processes side by side."""
    with Compilers(workers) as compilers:
        made = dict(compilers.compile(sources, arch))
    return [made[i] for i in range(len(sources))]


class Remembering(Compilers):
    """Compilers that have at once what any of them has compiled before: searches of one chain ask
    for the same sources."""

    made: ClassVar[dict[str, Binary]] = {}

    def begin(self, source: TritonSource, arch: str) -> Pending:
        asked = f"{arch} {source}"
        if asked in self.made:
            known: Pending = Future()
            known.set_result(self.made[asked])
            return known

        def remember(pending: Pending) -> None:
            ended_well = not pending.cancelled() and pending.exception() is None
            if ended_well and isinstance(binary := pending.result(), Binary):
                self.made[asked] = binary

        pending = super().begin(source, arch)
        pending.add_done_callback(remember)
        return pending
