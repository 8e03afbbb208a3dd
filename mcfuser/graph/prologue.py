"""The rows that products multiply, computed in the kernel of these products: a norm before a
projection, or before a gated pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tvm import relax

from mcfuser.chain import BYTES
from mcfuser.graph.dataflow import Dataflow, ValueKind, dtype, size, sources
from mcfuser.graph.regions import ROWS, Region, epilogues, next_producer
from mcfuser.graph.selection import Selection

REDUCES: tuple[ValueKind, ...] = ("norm", "softmax", "reduction")
"""What a prologue has one of: maps alone are an epilogue of what is before them."""


def normed(chosen: Selection, regions: Sequence[Region]) -> Iterator[Region]:
    """Each of the `regions`, and each product that no gated pair has, together with the prologue
    of its first product.

    A product is in here only where its right operand does not depend on the model's inputs: rows
    are computed anew for every block of columns, which pays where the columns are weights.
    """
    flow = chosen.flow
    owned, varying = _epilogue_values(chosen), _varying(flow)
    pairs = [r for r in regions if _same_left(flow, r)]
    gated = {p for r in pairs for p in (r.first, r.second)}
    alone = [Region((p,), 0, p, p) for p in flow.products if p not in gated]
    by_left = dict[relax.Var, list[Region]]()
    for region in (*pairs, *(r for r in regions if r.first not in gated), *alone):
        left, right = flow.values[region.first].args
        if flow.operator(region.first) != "matmul" or right in varying:
            continue
        if isinstance(left, relax.Var) and left not in owned:
            by_left.setdefault(left, []).append(region)
    for left, after in by_left.items():
        inside = {v for region in after for v in region.members}
        if left in flow.outputs or chosen.readers(left, inside):
            continue  # it is stored anyway
        if before := _prologue(chosen, left, owned):
            yield from (_with(flow, region, before) for region in after)


def _with(flow: Dataflow, region: Region, before: tuple[relax.Var, ...]) -> Region:
    members = sorted({*before, *region.members}, key=flow.position.__getitem__)
    saved = region.saved + saved_before(before)
    return replace(region, members=tuple(members), saved=saved, prologue=before)


def saved_before(prologue: Sequence[relax.Var]) -> int:
    """The bytes that need not be written and read back where a prologue shares a kernel."""
    return sum(2 * size(v) * BYTES.get(dtype(v), 4) for v in prologue)


def _same_left(flow: Dataflow, region: Region) -> bool:
    one, two = (flow.values[p].args[0] for p in (region.first, region.second))
    return bool(region.first is not region.second and one.same_as(two))


def _prologue(
    chosen: Selection, left: relax.Var, owned: AbstractSet[relax.Var]
) -> tuple[relax.Var, ...]:
    """The values that `left` is computed from and that nothing else reads, and `left` itself, which
    others may read; none where no row is reduced among them."""
    flow = chosen.flow
    if flow.kinds.get(left) not in (*ROWS, "view"):
        return ()
    members: tuple[relax.Var, ...] = (left,)
    while (more := next_producer(chosen, members, owned)) is not None:
        members = (more, *members)
    if not any(_reduces(flow, v) for v in members):
        return ()
    return tuple(sorted(members, key=flow.position.__getitem__))


def _reduces(flow: Dataflow, v: relax.Var) -> bool:
    """Whether a value reduces rows. Windows of a pool overlap, and are no rows."""
    return flow.kinds[v] in REDUCES and "_pool" not in flow.operator(v)


def _epilogue_values(chosen: Selection) -> set[relax.Var]:
    """The values that some product's kernel computes as its epilogue."""
    return {v for p in chosen.flow.products for v in next(epilogues(chosen, p), ())}


def _varying(flow: Dataflow) -> set[relax.Expr]:
    """The values that depend on what the function is given, which is among them."""
    varying = set[relax.Expr]()
    for v in flow.order:
        read = sources(flow.values[v])
        given = {x for x in read if x not in flow.values}
        varying |= given
        if given or any(x in varying for x in read):
            varying.add(v)
    return varying
