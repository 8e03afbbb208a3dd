"""Extents of a module's tensors: those that are numbers, and the functions that compute the others
at run time."""

from __future__ import annotations

import math

import tvm
from tvm import relax, tirx


def fixed(shape: relax.Expr) -> tuple[int, ...] | None:
    """The extents of a tensor with this shape; None where some are not numbers, or it has none."""
    if not isinstance(shape, relax.ShapeExpr):
        return None
    extents = tuple(int(d.value) for d in shape.values if isinstance(d, tirx.IntImm))
    return extents if len(extents) == len(shape.values) and extents else None


def counted(shape: relax.Expr) -> tuple[int, ...] | None:
    """The extents of a tensor with this shape, if they are numbers, and it has elements and no more
    of them than an int32 counts; None otherwise."""
    extents = fixed(shape)
    if extents is None or min(extents) < 1 or math.prod(extents) >= 1 << 31:
        return None
    return extents


@tvm.transform.module_pass(opt_level=0, name="mcfuser.OrderedShapes")  # type: ignore[untyped-decorator]
def ordered_shapes(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Stores extents in the order of their places.

    TVM's VMShapeLower stores what one function computes in the order of addresses, which differs
    from build to build: equal modules would be of unequal bytes. No store reads what another one
    in its function has written.
    """
    changed = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for name, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc) and _computes_extents(function):
            stores = sorted(function.body.seq, key=lambda store: int(store.indices[0]))
            changed.update_func(name, function.with_body(tirx.SeqStmt(stores)))
    return changed


def _computes_extents(function: tirx.PrimFunc) -> bool:
    """A function of TVM's that stores extents, and does nothing else."""
    marked = function.attrs is not None and function.attrs.get("tirx.is_host_func", 0)
    if not marked or not isinstance(function.body, tirx.SeqStmt):
        return False
    return all(isinstance(s, tirx.BufferStore) and len(s.indices) == 1 for s in function.body.seq)
