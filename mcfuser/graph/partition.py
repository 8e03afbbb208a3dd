"""Partitions a module: which products share a chain, by the bytes that it saves, and why others
do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from mcfuser.chain import BYTES, Chain
from mcfuser.graph.dataflow import (
    Dataflow,
    ValueKind,
    computed_from,
    dataflow,
    dtype,
    extents,
    reachable,
    shape,
    size,
    sources,
)
from mcfuser.graph.lift import Lifted, lift
from mcfuser.graph.operand import FLOATS
from mcfuser.graph.views import Unliftable

_EPILOGUE: tuple[ValueKind, ...] = ("elementwise", "view")
_BETWEEN: tuple[ValueKind, ...] = ("elementwise", "view", "softmax")
_ROWS: tuple[ValueKind, ...] = ("elementwise", "softmax", "norm", "reduction")
"""What a chain without a product is made of, besides views."""
_SMALLEST = 1 << 15
"""Elements of maps below which they are left to TVM."""


@dataclass(frozen=True, slots=True)
class ChainMatch:
    """A chain of a module, and the values of the module that it reads, replaces and computes.

    `arguments` are the values of its inputs that are computed at run time, `constants` the arrays
    of the others, each in the chain's own dimensions; `shapes` are the physical shapes of all
    inputs and outputs. `bindings` are the values that it replaces, the last one its output.
    `saved` is the number of bytes that need not be written and read back.
    """

    chain: Chain
    arguments: Mapping[str, relax.Expr]
    constants: Mapping[str, NDArray[np.generic]]
    outputs: Mapping[str, relax.Var]
    shapes: Mapping[str, tuple[int, ...]]
    bindings: tuple[relax.Var, ...]
    saved: int


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
    """The chains of a module, in the order in which they run, and all its products."""

    matches: tuple[ChainMatch, ...]
    products: tuple[ModelProduct, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two products that could share a kernel, and the values between them."""

    first: relax.Var
    second: relax.Var
    inner: tuple[relax.Var, ...]
    saved: int


@dataclass
class _Cut:
    """The chains that were cut out of a module so far, and why others could not be."""

    flow: Dataflow
    matches: list[ChainMatch] = field(default_factory=list)
    closed: set[relax.Var] = field(default_factory=set)
    arguments: set[relax.Var] = field(default_factory=set)
    reasons: dict[relax.Var, str] = field(default_factory=dict)
    live: set[relax.Var] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Finds the values that are still read. A view that was lifted into a chain is read no
        more."""
        self.live = set(self.flow.outputs) | self.arguments
        for v in reversed(self.flow.order):
            readers = self.flow.readers.get(v, ())
            if any(r in self.live and r not in self.closed for r in readers):
                self.live.add(v)
            if v in self.closed:
                self.live.add(v)

    def readers(self, v: relax.Var, inside: set[relax.Var]) -> tuple[relax.Var, ...]:
        """The values outside `inside` that read `v` and are computed by no chain so far."""
        every = self.flow.readers.get(v, ())
        return tuple(
            r for r in every if r in self.live and r not in self.closed and r not in inside
        )

    def escapes(self, inner: Sequence[relax.Var], inside: set[relax.Var]) -> str | None:
        """Why a value of `inner` must be stored although only `inside` should read it."""
        for v in inner:
            if v in self.flow.outputs:
                return f"'{v.name}' is an output of the model"
            if v in self.arguments:
                return f"'{v.name}' is also read by another chain"
            if others := self.readers(v, inside):
                return (
                    f"'{v.name}' is also read by '{others[0].name}' "
                    f"({self.flow.operator(others[0])})"
                )
        return None

    def take(self, members: Sequence[relax.Var], lifted: Lifted, saved: int) -> None:
        self.matches.append(
            ChainMatch(
                lifted.chain,
                lifted.arguments,
                lifted.constants,
                lifted.outputs,
                lifted.shapes,
                tuple(members),
                saved,
            )
        )
        self.closed |= set(members)
        self.arguments |= {a for a in lifted.arguments.values() if isinstance(a, relax.Var)}
        self.refresh()


def partition(module: tvm.IRModule, peak: float, bandwidth: float) -> Partition:
    """The chains of `main`; `peak` in flop/s and `bandwidth` in byte/s judge its products.

    Chains of two products are taken by the bytes they save, then every other product with its
    elementwise epilogue. Chains do not overlap, and nothing inside one is read outside.
    """
    cut = _Cut(dataflow(module["main"]))
    for pair in sorted((*_gates(cut), *_pairs(cut)), key=lambda p: -p.saved):
        _fuse(cut, pair)
    for v in cut.flow.products:
        if v not in cut.closed:
            _alone(cut, v)
    for v in reversed(cut.flow.order):
        if v not in cut.closed and cut.flow.kinds[v] in _ROWS and v in cut.live:
            _without_product(cut, v)
    matches = sorted(cut.matches, key=lambda m: cut.flow.position[m.bindings[-1]])
    products = tuple(_product(cut, matches, v, peak / bandwidth) for v in cut.flow.products)
    return Partition(tuple(matches), products)


def _pairs(cut: _Cut) -> Iterator[_Pair]:
    flow = cut.flow
    for first in flow.products:
        reached = reachable(flow, first, _BETWEEN)
        for v in reached:
            for second in flow.readers.get(v, ()):
                if flow.kinds[second] != "product":
                    continue
                inner = computed_from(flow, v, reached)
                if why := cut.escapes(inner, {*inner, second}):
                    cut.reasons.setdefault(first, why)
                    continue
                rounds = 1 + sum(flow.kinds[x] == "softmax" for x in inner)
                saved = 2 * rounds * size(first) * BYTES.get(dtype(first), 4)
                yield _Pair(first, second, inner, saved)


def _gates(cut: _Cut) -> Iterator[_Pair]:
    """Two products with the same left operand, whose results are combined elementwise."""
    flow = cut.flow
    reached = {v: reachable(flow, v, _EPILOGUE) for v in flow.products if v not in cut.closed}
    for i, (first, after) in enumerate(reached.items()):
        for second in [*reached][i + 1 :]:
            if not flow.values[first].args[0].same_as(flow.values[second].args[0]):
                continue
            joined = next((v for v in after if v in reached[second]), None)
            if joined is None or size(joined) != size(first):
                continue
            inner = computed_from(flow, joined, {*after, *reached[second]})
            if cut.escapes(inner[:-1], set(inner)) is None and inner[-1].same_as(joined):
                saved = 4 * size(first) * BYTES.get(dtype(first), 4)
                after_gate = _next_product(cut, joined)
                if after_gate is not None:
                    yield _Pair(first, after_gate[-1], (*inner, *after_gate[:-1]), 3 * saved // 2)
                yield _Pair(first, joined, inner[:-1], saved)


def _next_product(cut: _Cut, v: relax.Var) -> tuple[relax.Var, ...] | None:
    """The only product that reads a value, after the views and maps between them."""
    path = list[relax.Var]()
    while cut.escapes([v], set(cut.flow.readers.get(v, ()))) is None:
        readers = cut.flow.readers.get(v, ())
        if len(readers) != 1 or cut.flow.kinds[readers[0]] not in ("view", "product"):
            return None
        v = readers[0]
        path.append(v)
        if cut.flow.kinds[v] == "product":
            return tuple(path)
    return None


def _without_product(cut: _Cut, last: relax.Var) -> None:
    """Cuts out the values that only `last` is computed from, as many as one chain can have."""
    members = (last,)
    try:
        lifted = _lifted(cut, members)
    except Unliftable:
        return
    refused = set[relax.Var]()
    while (more := _producer(cut, members, refused)) is not None:
        grown = tuple(sorted((more, *members), key=cut.flow.position.__getitem__))
        try:
            lifted, members = _lifted(cut, grown), grown
        except Unliftable:
            refused.add(more)
    kinds = {cut.flow.kinds[v] for v in members}
    if kinds <= {"elementwise", "view"} and max(size(v) for v in members) < _SMALLEST:
        return
    saved = 2 * sum(size(v) * BYTES.get(dtype(v), 4) for v in members[:-1])
    cut.take(members, lifted, saved)


def _lifted(cut: _Cut, members: tuple[relax.Var, ...]) -> Lifted:
    return lift(cut.flow, members, frozenset(cut.closed), members[-1].name)


def _producer(
    cut: _Cut, members: Sequence[relax.Var], refused: AbstractSet[relax.Var]
) -> relax.Var | None:
    """The latest value that members alone read, of a kind that may join them."""
    inside, found = set(members), list[relax.Var]()
    for member in members:
        for v in sources(cut.flow.values[member]):
            if v in inside or v in refused or v in cut.closed:
                continue
            if cut.flow.kinds.get(v) in (*_ROWS, "view") and cut.escapes([v], inside) is None:
                found.append(v)
    return max(found, key=cut.flow.position.__getitem__, default=None)


def _fuse(cut: _Cut, pair: _Pair) -> None:
    members = (*pair.inner, pair.second)
    taken = next((v for v in members if v in cut.closed), None)
    if taken is not None:
        other = next(m for m in cut.matches if taken in m.bindings)
        cut.reasons.setdefault(
            pair.first,
            f"a chain with '{pair.second.name}' would save {pair.saved} bytes, "
            f"but '{taken.name}' is in one that saves {other.saved}",
        )
        return
    if why := cut.escapes(pair.inner, set(members)):
        cut.reasons.setdefault(pair.first, why)
        return
    _cut_out(cut, members, pair.saved, f"{pair.first.name}_{pair.second.name}")


def _alone(cut: _Cut, v: relax.Var) -> None:
    if extents(v) is None or dtype(v) not in FLOATS:
        cut.reasons[v] = f"its result is {dtype(v)}, and only float32 and float16 are fused"
        return
    _cut_out(cut, (v,), 0, v.name)


def _cut_out(cut: _Cut, members: tuple[relax.Var, ...], saved: int, name: str) -> None:
    """Cuts out the chain of `members` with the longest epilogue that can be lifted."""
    for epilogue in _epilogues(cut, members[-1]):
        whole = tuple(dict.fromkeys((*members, *epilogue)))
        try:
            lifted = lift(cut.flow, whole, frozenset(cut.closed), name)
        except Unliftable as why:
            cut.reasons[members[0]] = str(why)
            continue
        cut.take(whole, lifted, saved)
        return


def _epilogues(cut: _Cut, last: relax.Var) -> Iterator[tuple[relax.Var, ...]]:
    """The sequences of values that may follow a chain's last product in its kernel, longest
    first."""
    reached = [v for v in reachable(cut.flow, last, _EPILOGUE) if v not in cut.closed]
    for v in reversed(reached):
        inner = computed_from(cut.flow, v, reached)
        if inner[0].same_as(last) and cut.escapes(inner[:-1], set(inner)) is None:
            yield inner


def _product(cut: _Cut, matches: Sequence[ChainMatch], v: relax.Var, limit: float) -> ModelProduct:
    left, right = cut.flow.values[v].args
    chain = next((i for i, m in enumerate(matches) if v in m.bindings), None)
    fused = chain is not None and _count(cut.flow, matches[chain]) > 1
    reason = None if fused else cut.reasons.get(v) or _obstacle(cut, v)
    out = shape(v)
    rows = shape(left)[-2] if len(shape(left)) > 1 else 1
    columns = shape(right)[-1] if len(shape(right)) > 1 else 1
    depth = shape(left)[-1]
    batch = math.prod(out) // (rows * columns)
    flops = 2 * rows * columns * depth
    moved = 2 * rows * columns + depth * (rows + columns)
    phi = flops / (moved * BYTES.get(dtype(v), 4))
    return ModelProduct(
        v.name, batch, rows, columns, depth, dtype(v), phi, phi < limit, chain, reason
    )


def _count(flow: Dataflow, match: ChainMatch) -> int:
    return sum(flow.kinds[v] == "product" for v in match.bindings)


def _obstacle(cut: _Cut, v: relax.Var) -> str:
    """Why a product shares a chain with no product after it: what follows it in the module."""
    flow = cut.flow
    for x in reachable(flow, v, _BETWEEN):
        if x in flow.outputs:
            return "no product follows: its result is an output of the model"
        for reader in flow.readers.get(x, ()):
            if flow.kinds[reader] == "other" or size(reader) != size(v):
                return (
                    f"{flow.operator(reader)} ('{reader.name}') follows, "
                    "which is neither elementwise nor a product"
                )
    return "no product follows"
