"""Partitions a module: which values share a chain, by the time that this is expected to take, and
why products share none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

import tvm
from tvm import relax

from mcfuser.chain import BYTES, ChannelsLast, ProductPrecision
from mcfuser.expr import NARROW
from mcfuser.graph.bill import dearer
from mcfuser.graph.dataflow import (
    FLOATS,
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
from mcfuser.graph.joined import joined
from mcfuser.graph.layout import layouts
from mcfuser.graph.leftover import left_out
from mcfuser.graph.lift import Lifted, lift
from mcfuser.graph.price import Price, Prices, roofline, ticks, with_epilogue
from mcfuser.graph.prologue import normed, saved_before
from mcfuser.graph.reduce import reduced_dimensions
from mcfuser.graph.regions import (
    BETWEEN,
    ROWS,
    Region,
    gated_pairs,
    named,
    next_producer,
    product_pairs,
)
from mcfuser.graph.segment import Considered, model_cover
from mcfuser.graph.selection import ChainMatch, Selection
from mcfuser.graph.views import Unliftable

_MOVES: tuple[ValueKind, ...] = ("elementwise", "view", "concatenation")
_SMALLEST_MAP, _SMALLEST_HERE, _SMALLEST = 1 << 15, 1 << 10, 1 << 8
"""Elements of maps, of maps on a CPU, and of what has reductions, below which they are left to TVM.
Of small pictures whose neighbours have their channels last TVM computes 16,384 elements in 170 us.
"""
_MANY = 1 << 15
"""A reduction that reads as many elements, along the last dimension, is not left to TVM, which adds
such terms one by one."""
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

    `left` has every value that is in no chain, with the reason, and `considered` the regions that
    had alternatives.
    """

    matches: tuple[ChainMatch, ...]
    products: tuple[ModelProduct, ...]
    left: Mapping[relax.Var, str]
    considered: tuple[Considered, ...] = ()

    @property
    def close(self) -> tuple[str, ...]:
        """The chains, by their keys, that would make other covers which are expected to be about as
        fast."""
        keys = (c.key for c in self.considered if c.verdict == "close")
        return tuple(dict.fromkeys(k for k in keys if k is not None))


def partition(
    module: tvm.IRModule,
    peak: float,
    bandwidth: float,
    price: Price | None = None,
    preferred: AbstractSet[str] = frozenset(),
    integers: bool = True,
    last: ChannelsLast = "never",
    copies: bool = True,
    deep: bool = False,
    precision: ProductPrecision = "float32",
) -> Partition:
    """The chains of `main`; `peak` in flop/s and `bandwidth` in byte/s judge its products.

    Regions of several products, and of products with the norm before them, are chosen by the
    `price` of their kernels: by a roofline, where none is given.
    Every other product is a chain with its elementwise epilogue, then norms, reductions and maps
    that no product's chain computes. Nothing inside a chain is read outside, and no two chains
    compute the same value, but for rows that each of their readers computes anew. The chains that
    are `preferred`, by their keys, are chosen where overlapping regions could have them, whatever
    their price. `integers` tells whether the device's kernels multiply small integers as such
    (mcfuser.backend.Backend.integers), and `last` where they are fastest if pictures have their
    channels last (Backend.channels_last). The device `copies` a few elements in next to no
    time: a CPU does, while on a GPU that is one more launch. `deep` tells whether its kernels are
    fastest where float32 weights are stored along the depth (Backend.tf32), and `precision` to what
    kernels may round float32 operands of products.
    """
    flow = dataflow(module["main"], integers, copies)
    flow = replace(flow, depth_last=deep, precision=precision)
    least = partial(roofline, peak=peak, bandwidth=bandwidth)
    price, known = price or least, dict[str, int]()

    def stored(last: frozenset[relax.Var]) -> Partition:
        prices = Prices(Selection(replace(flow, channels_last=last)), price, known)
        return _partition(prices, preferred, peak / bandwidth)

    found, *others = (stored(last) for last in layouts(flow, last))
    for other in others:
        found = _cheaper(found, other, price, least, known)
    return replace(found, matches=joined(flow, found.matches))


def _cheaper(
    one: Partition, other: Partition, price: Price, least: Price, known: dict[str, int]
) -> Partition:
    """The partition whose chains cost less: the first one, if they cost the same. Chains that both
    have are not priced."""
    chains = {m.chain.key: m.chain for found in (one, other) for m in found.matches}
    counts, others = (Counter(m.chain.key for m in found.matches) for found in (one, other))
    weights = {key: least(chain) for key, chain in chains.items()}
    asked = dearer(
        counts - others, others - counts, weights, lambda key: ticks(chains[key], price, known)
    )
    return other if asked else one


def _partition(prices: Prices, preferred: AbstractSet[str], balance: float) -> Partition:
    """The chains of values that are stored in one way; `balance` is the device's flop per byte."""
    chosen = prices.chosen
    regions = [*gated_pairs(chosen)]
    written = [set(r.members) for r in regions if prices.written(r.members)]
    regions += (
        r for r in product_pairs(chosen) if not any(w.issuperset(r.members) for w in written)
    )
    regions += normed(chosen, regions)
    cover = model_cover(regions, prices, preferred)
    for region in sorted(cover.regions, key=lambda r: -r.saved):
        _fuse(chosen, region, _repeated(region, cover.regions))
    for found in cover.considered:
        if not found.chosen and not found.region.prologue:
            chosen.reasons.setdefault(found.region.first, _told(chosen.flow, found))
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
        _product(chosen, matches, numbers.get(v), v, balance) for v in chosen.flow.products
    )
    obstacles = {v: p.reason for v, p in zip(chosen.flow.products, products, strict=True)}
    left = left_out(chosen, obstacles)
    return Partition(tuple(matches), products, left, cover.considered)


def _repeated(region: Region, regions: Sequence[Region]) -> set[relax.Var]:
    """The members of every chosen region that computes the same prologue: they may read it."""
    if not region.prologue:
        return set(region.members)
    return {v for r in regions if r.prologue == region.prologue for v in r.members}


def _fuse(chosen: Selection, region: Region, readers: set[relax.Var]) -> None:
    """Takes the chain of a region, whose values none but these `readers` may need stored; without
    the region's prologue where that cannot be."""
    members = region.members
    taken = next((v for v in region.core if v in chosen.closed), None)
    if taken is not None:
        other = next(m for m in chosen.matches if taken in m.bindings)
        chosen.reasons.setdefault(
            region.first,
            f"a chain with '{chosen.flow.name(region.second)}' would save {region.saved} bytes, "
            f"but '{taken.name}' is in one that saves {other.saved}",
        )
        return
    why = chosen.escapes(members[:-1], readers)
    if why is None:
        if _take(chosen, members, region.saved, named(chosen.flow, region)):
            return
    elif not region.prologue:
        chosen.reasons.setdefault(region.first, why)
    if region.prologue and region.first is not region.second:
        saved = region.saved - saved_before(region.prologue)
        core = replace(region, members=region.core, prologue=(), saved=saved)
        _fuse(chosen, core, set(region.core))


def _told(flow: Dataflow, considered: Considered) -> str:
    """Why a region was not chosen, for messages."""
    if considered.reason is not None:
        return considered.reason
    other = flow.name(considered.region.second)
    if considered.total is None or considered.least is None:
        return f"one kernel for it and '{other}' has no candidate"
    return (
        f"a chain with '{other}' is predicted to make {considered.total * 1e6:.1f} us of "
        f"{considered.least * 1e6:.1f} us"
    )


def _alone(chosen: Selection, v: relax.Var) -> None:
    if extents(v) is None or dtype(v) not in FLOATS:
        chosen.reasons[v] = f"its result is {dtype(v)}, and only {', '.join(FLOATS)} are fused"
        return
    _take(chosen, (v,), 0, chosen.flow.name(v))


def _take(chosen: Selection, members: tuple[relax.Var, ...], saved: int, name: str) -> bool:
    """Takes the chain of `members` with the longest epilogue that can be lifted, if any."""
    try:
        whole, lifted = with_epilogue(chosen, members, name)
    except Unliftable as why:
        chosen.reasons[members[0]] = str(why)
        return False
    chosen.take(whole, lifted, saved)
    return True


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a region without a product can have at most: the elements of its largest value, whether
    it may do more than move elements, and the most that a reduction along the last dimension reads.
    """

    elements: int
    computes: bool
    reduced: int

    def small(self, flow: Dataflow) -> str | None:
        """Why such a region is left to TVM, if it is."""
        smallest_map = _SMALLEST_HERE if flow.copies else _SMALLEST_MAP
        least = _SMALLEST if self.computes else smallest_map
        if self.elements >= least or self.reduced >= _MANY:
            return None
        return f"too small to pay: {self.elements} elements, fewer than {least}"


def _bounds(chosen: Selection) -> dict[relax.Var, _Bound]:
    """The bounds of a region without a product, by its last value.

    Most values of an unrolled recurrence are far too small, and to lift one takes milliseconds.
    """
    flow = chosen.flow
    bounds: dict[relax.Var, _Bound] = {}
    for v in flow.order:
        if v in chosen.closed or flow.kinds[v] not in (*ROWS, "view"):
            continue
        before = (bounds[x] for x in sources(flow.values[v]) if x in bounds)
        bounds[v] = _bound([_own(flow, v), *before])
    return bounds


def _own(flow: Dataflow, v: relax.Var) -> _Bound:
    """The bound of a value alone."""
    return _Bound(size(v), flow.kinds[v] not in _MOVES, _reduced(flow, v))


def _bound(every: Sequence[_Bound]) -> _Bound:
    """The bound of a region of parts with these bounds."""
    return _Bound(
        max(b.elements for b in every),
        any(b.computes for b in every),
        max(b.reduced for b in every),
    )


def _reduced(flow: Dataflow, v: relax.Var) -> int:
    """The elements that a reduction reads whose terms lie side by side; 0 for everything else."""
    if flow.kinds[v] != "reduction":
        return 0
    value = flow.values[v]
    data, rank = value.args[0], len(shape(value.args[0]))
    along = None if "_pool" in value.op.name else value.attrs.axis  # a window has the last one, too
    return size(data) if rank - 1 in reduced_dimensions(along, rank) else 0


def _without_product(chosen: Selection, last: relax.Var, bound: _Bound) -> None:
    """Takes the values that only `last` is computed from, as many as one chain can have; `bound`
    is that of the region."""
    if (small := bound.small(chosen.flow)) is not None:
        chosen.reasons.setdefault(last, small)
        return
    members = _with_bounds(chosen, last)
    try:
        lifted = _lifted(chosen, members)
    except Unliftable as why:
        chosen.reasons.setdefault(last, str(why))
        return
    refused = set[relax.Var]()
    # a CPU copies what is broadcast: a norm of groups takes it up to a fifth longer as one kernel
    broadcasts = not chosen.flow.copies
    while (more := next_producer(chosen, members, refused, broadcasts)) is not None:
        grown = (*_with_bounds(chosen, more), *members)
        grown = tuple(sorted(grown, key=chosen.flow.position.__getitem__))
        try:
            larger = _lifted(chosen, grown)
        except Unliftable:
            refused.add(more)
            continue
        if len(larger.chain.axes) > _AXES:
            refused.add(more)
        else:
            lifted, members = larger, grown
    found = _bound([_own(chosen.flow, v) for v in members])
    small = found.small(chosen.flow)
    if small is not None or _behind_each_other(chosen.flow, members):
        reason = small or "it puts tensors behind each other in memory"
        chosen.reasons.setdefault(last, reason)
        return
    saved = sum(2 * size(v) * BYTES.get(dtype(v), 4) for v in members[:-1])
    chosen.take(members, lifted, saved)


def _behind_each_other(flow: Dataflow, members: tuple[relax.Var, ...]) -> bool:
    """Whether a region only puts whole tensors behind each other in memory: they are copied as fast
    as anything is read, or are where they shall be already (mcfuser.codegen.cuda.places)."""
    first, *more = members
    if more or flow.kinds[first] != "concatenation":
        return False
    whole = shape(first)
    return math.prod(whole[: int(flow.values[first].attrs.axis) % len(whole)]) == 1


def _with_bounds(chosen: Selection, last: relax.Var) -> tuple[relax.Var, ...]:
    """A value; of one that was cast to a narrow integer, together with the bounds it was clipped
    to, without which nobody knows that it fits."""
    members: tuple[relax.Var, ...] = (last,)
    if dtype(last) in NARROW and chosen.flow.operator(last) == "astype":
        while (more := next_producer(chosen, members, set())) is not None:
            if chosen.flow.operator(more) not in ("maximum", "minimum", "clip"):
                break
            members = (more, *members)
    return members


def _lifted(chosen: Selection, members: tuple[relax.Var, ...]) -> Lifted:
    return lift(chosen.flow, members, frozenset(chosen.closed), chosen.flow.name(members[-1]))


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
