"""The block around all that a function does."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx


def with_root(
    function: tirx.PrimFunc,
    parameters: Sequence[tirx.Var],
    steps: Sequence[tirx.Stmt],
    allocated: Sequence[tirx.Var],
) -> tirx.PrimFunc:
    """A function with other parameters, that does other `steps`, one at least, with these buffers
    of its own."""
    root = function.body.block
    body = tirx.SeqStmt(steps) if len(steps) > 1 else steps[0]
    block = s_tir.SBlock(
        [], [], [], root.name_hint, body, root.init, allocated, root.match_buffers,
        root.annotations,
    )  # fmt: skip
    return tirx.PrimFunc(parameters, s_tir.SBlockRealize([], True, block), attrs=function.attrs)
