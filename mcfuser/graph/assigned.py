"""Tensors that are made by assigning to their slices, as concatenations of what is assigned.

`out[..., 0::2] = a; out[..., 1::2] = b` is exported as two operators that scatter rows, each into
a tensor of which nothing is left in the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax

from mcfuser.graph.dataflow import array, extents
from mcfuser.graph.matching import calls_rewritten

_SCATTER = "relax.scatter_nd"


def assigned_slices(function: relax.Function) -> relax.Function:
    """The function without scattering of rows to constant places that are all rows together, if
    these lie behind each other or take turns."""
    values = relax.analysis.get_var2val(function)

    def rewriter(call: relax.Call) -> relax.Expr:
        found = _concatenated(call, values)
        return call if found is None else found

    return calls_rewritten(function, {_SCATTER}, rewriter)


def _concatenated(call: relax.Call, values: Mapping[relax.Var, relax.Expr]) -> relax.Expr | None:
    """What a call scatters, and those calls that made the tensor into which it does, as one
    concatenation; None where something else is left between, or is written twice."""
    shape = extents(call)
    if shape is None:
        return None
    parts, seen = list[tuple[NDArray[np.int64], relax.Expr]](), np.zeros(shape[0], bool)
    rest: relax.Expr = call
    while not seen.all():
        rows = _rows(rest, shape)
        if rows is None or seen[rows].any() or len(np.unique(rows)) < len(rows):
            return None
        seen[rows] = True
        parts.append((rows, rest.args[2]))
        rest = rest.args[0]
        rest = values.get(rest, rest) if isinstance(rest, relax.Var) else rest
    parts.sort(key=lambda part: int(part[0][0]))
    every, updates = [rows for rows, _ in parts], [update for _, update in parts]
    if np.array_equal(np.concatenate(every), np.arange(shape[0])):
        return relax.op.concat(updates, 0) if len(updates) > 1 else updates[0]
    if all(
        np.array_equal(rows, np.arange(i, shape[0], len(parts))) for i, rows in enumerate(every)
    ):
        turns = relax.op.concat([relax.op.expand_dims(update, 1) for update in updates], 1)
        return relax.op.reshape(turns, shape)
    return None


def _rows(value: relax.Expr, shape: tuple[int, ...]) -> NDArray[np.int64] | None:
    """The rows of a tensor that a value replaces by others; None where it is something else."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return None
    if value.op.name != _SCATTER or value.attrs.reduction != "update":
        return None
    rows = array(value.args[1])
    if rows is None or rows.ndim != 2 or rows.shape[1] != 1 or not rows.size:
        return None
    return rows[:, 0].astype(np.int64) % shape[0]
