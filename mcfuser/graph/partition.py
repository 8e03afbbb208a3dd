"""Partitions a module: which values share a chain, by the bytes that it saves, and why products
share none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from mcfuser.chain import BYTES
from mcfuser.graph.dataflow import (
    Dataflow,
    ValueKind,
    dataflow,
    dtype,
    extents,
    reachable,
    shape,
    size,
    sources,
)
from mcfuser.graph.leftover import left_out
from mcfuser.graph.lift import Lifted, lift
from mcfuser.graph.operand import FLOATS
from mcfuser.graph.regions import (
    BETWEEN,
    ROWS,
    Region,
    epilogues,
    gated_pairs,
    next_producer,
    product_pairs,
)
from mcfuser.graph.selection import ChainMatch, Selection
from mcfuser.graph.views import Unliftable

_MOVES: tuple[ValueKind, ...] = ("elementwise", "view", "concatenation")
_SMALLEST_MAP, _SMALLEST = 1 << 15, 1 << 8
"""Elements of maps, and of what has reductions, below which they are left to TVM."""
_AXES = 7
"""The most axes of a region without a product that has several operators. Its loops can be nested
in any order, and pools over windows of their own have no loop in common to gain from."""


@dataclass(frozen=True, slots=True)
class ModelProduct:
    """A matrix product of the module: `batch` times `rows` x `depth` by `depth` x `columns`.

    `phi` is flops per byte; it is an MBCI operator where that is below the device's P/W. `chain` is
    the number of its chain in `Partition.matches`, None where it is in no chain; `reason` says why
    no other product is in that chain.
    """

    name: str
    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str
    phi: float
    mbci: bool
    chain: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Partition:
    """The chains of a module, in the order in which they run, and all its products.

    `left` has every value that is in no chain, with the reason.
    """

    matches: tuple[ChainMatch, ...]
    products: tuple[ModelProduct, ...]
    left: Mapping[relax.Var, str]


def partition(module: tvm.IRModule, peak: float, bandwidth: float) -> Partition:
    """The chains of `main`; `peak` in flop/s and `bandwidth` in byte/s judge its products.

    Regions of several products are taken by the bytes that they save, then every other product with
    its elementwise epilogue, then norms, reductions and maps that no product computes. Chains do
    not overlap, and nothing inside one is read outside.
    """
    chosen = Selection(dataflow(module["main"]))
    regions = (*gated_pairs(chosen), *product_pairs(chosen))
    for region in sorted(regions, key=lambda r: -r.saved):
        _fuse(chosen, region)
    for v in chosen.flow.products:
        if v not in chosen.closed:
            _alone(chosen, v)
    bounds = _bounds(chosen)
    for v in reversed(chosen.flow.order):
        if v not in chosen.closed and chosen.flow.kinds[v] in ROWS and v in chosen.live:
            _without_product(chosen, v, bounds[v])
    matches = sorted(chosen.matches, key=lambda m: chosen.flow.position[m.bindings[-1]])
    numbers = {v: i for i, match in enumerate(matches) for v in match.bindings}
    products = tuple(
        _product(chosen, matches, numbers.get(v), v, peak / bandwidth) for v in chosen.flow.products
    )
    obstacles = {v: p.reason for v, p in zip(chosen.flow.products, products, strict=True)}
    return Partition(tuple(matches), products, left_out(chosen, obstacles))


def _fuse(chosen: Selection, region: Region) -> None:
    members = region.members
    taken = next((v for v in members if v in chosen.closed), None)
    if taken is not None:
        other = next(m for m in chosen.matches if taken in m.bindings)
        chosen.reasons.setdefault(
            region.first,
            f"a chain with '{chosen.flow.name(region.second)}' would save {region.saved} bytes, "
            f"but '{taken.name}' is in one that saves {other.saved}",
        )
        return
    if why := chosen.escapes(members[:-1], set(members)):
        chosen.reasons.setdefault(region.first, why)
        return
    name = f"{chosen.flow.name(region.first)}_{chosen.flow.name(region.second)}"
    _take(chosen, members, region.saved, name)


def _alone(chosen: Selection, v: relax.Var) -> None:
    if extents(v) is None or dtype(v) not in FLOATS:
        chosen.reasons[v] = f"its result is {dtype(v)}, and only {', '.join(FLOATS)} are fused"
        return
    _take(chosen, (v,), 0, chosen.flow.name(v))


def _take(chosen: Selection, members: tuple[relax.Var, ...], saved: int, name: str) -> None:
    """Takes the chain of `members` with the longest epilogue that can be lifted."""
    for epilogue in epilogues(chosen, members[-1]):
        whole = tuple(dict.fromkeys((*members, *epilogue)))
        try:
            lifted = lift(chosen.flow, whole, frozenset(chosen.closed), name)
        except Unliftable as why:
            chosen.reasons[members[0]] = str(why)
            continue
        chosen.take(whole, lifted, saved)
        return


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a region without a product can have at most: the elements of its largest value, and
    whether it may do more than move elements."""

    elements: int
    computes: bool

    @property
    def least(self) -> int:
        """The elements below which such a region is left to TVM."""
        return _SMALLEST if self.computes else _SMALLEST_MAP


def _bounds(chosen: Selection) -> dict[relax.Var, _Bound]:
    """The bounds of a region without a product, by its last value.

    Most values of an unrolled recurrence are far too small, and to lift one takes milliseconds.
    """
    flow = chosen.flow
    bounds: dict[relax.Var, _Bound] = {}
    for v in flow.order:
        if v in chosen.closed or flow.kinds[v] not in (*ROWS, "view"):
            continue
        before = [bounds[x] for x in sources(flow.values[v]) if x in bounds]
        bounds[v] = _Bound(
            max([size(v), *(b.elements for b in before)]),
            flow.kinds[v] not in _MOVES or any(b.computes for b in before),
        )
    return bounds


def _without_product(chosen: Selection, last: relax.Var, bound: _Bound) -> None:
    """Takes the values that only `last` is computed from, as many as one chain can have; `bound`
    is that of the region."""
    if bound.elements < bound.least:
        few = f"{bound.elements} elements, fewer than {bound.least}"
        chosen.reasons.setdefault(last, f"too small to pay: {few}")
        return
    members: tuple[relax.Var, ...] = (last,)
    try:
        lifted = _lifted(chosen, members)
    except Unliftable as why:
        chosen.reasons.setdefault(last, str(why))
        return
    refused = set[relax.Var]()
    while (more := next_producer(chosen, members, refused)) is not None:
        grown = tuple(sorted((more, *members), key=chosen.flow.position.__getitem__))
        try:
            larger = _lifted(chosen, grown)
        except Unliftable:
            refused.add(more)
            continue
        if len(larger.chain.axes) > _AXES:
            refused.add(more)
        else:
            lifted, members = larger, grown
    computes = any(chosen.flow.kinds[v] not in _MOVES for v in members)
    found = _Bound(max(map(size, members)), computes)
    if found.elements < found.least:
        few = f"{found.elements} elements, fewer than {found.least}"
        chosen.reasons.setdefault(last, f"too small to pay: {few}")
        return
    saved = sum(2 * size(v) * BYTES.get(dtype(v), 4) for v in members[:-1])
    chosen.take(members, lifted, saved)


def _lifted(chosen: Selection, members: tuple[relax.Var, ...]) -> Lifted:
    return lift(chosen.flow, members, frozenset(chosen.closed), members[-1].name)


def _product(
    chosen: Selection,
    matches: Sequence[ChainMatch],
    chain: int | None,
    v: relax.Var,
    limit: float,
) -> ModelProduct:
    fused = chain is not None and _count(chosen.flow, matches[chain]) > 1
    reason = None if fused else chosen.reasons.get(v) or _obstacle(chosen, v)
    batch, rows, columns, depth, read = _extents(chosen.flow, v)
    flops = 2 * batch * rows * columns * depth
    moved = (2 * size(v) + read) * BYTES.get(dtype(v), 4)
    phi = flops / moved
    name = chosen.flow.name(v)
    return ModelProduct(
        name, batch, rows, columns, depth, dtype(v), phi, phi < limit, chain, reason
    )


def _extents(flow: Dataflow, v: relax.Var) -> tuple[int, int, int, int, int]:
    """A product's batch, rows, columns and depth, and the number of elements that it reads; of a
    convolution, rows are the positions of its result, and depth is a window's extent."""
    left, right = flow.values[v].args
    out = shape(v)
    if flow.operator(v) != "matmul":
        groups = int(flow.values[v].attrs.groups)
        n, columns, *spatial = out
        depth = math.prod(shape(right)[1:])
        rows = math.prod(spatial)
        return n * groups, rows, columns // groups, depth, size(left) + size(right)
    rows = shape(left)[-2] if len(shape(left)) > 1 else 1
    columns = shape(right)[-1] if len(shape(right)) > 1 else 1
    depth = shape(left)[-1]
    batch = math.prod(out) // (rows * columns)
    return batch, rows, columns, depth, batch * depth * (rows + columns)


def _count(flow: Dataflow, match: ChainMatch) -> int:
    return sum(flow.kinds[v] == "product" for v in match.bindings)


def _obstacle(chosen: Selection, v: relax.Var) -> str:
    """Why a product shares a chain with no product after it: what follows it in the module."""
    flow = chosen.flow
    for x in reachable(flow, v, BETWEEN):
        if x in flow.outputs:
            return "no product follows: its result is an output of the model"
        for reader in flow.readers.get(x, ()):
            if flow.kinds[reader] == "other" or size(reader) != size(v):
                return (
                    f"{flow.operator(reader)} ('{reader.name}') follows, "
                    "which is neither elementwise nor a product"
                )
    return "no product follows"
