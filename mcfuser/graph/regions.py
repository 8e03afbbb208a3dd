"""Regions of a module: values that might share a kernel, whatever operators compute them.

Regions overlap; `mcfuser.graph.cover` chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tvm import relax

from mcfuser.chain import BYTES
from mcfuser.graph.dataflow import (
    MOVING,
    Dataflow,
    ValueKind,
    computed_from,
    dtype,
    reachable,
    size,
    sources,
)
from mcfuser.graph.selection import Selection

EPILOGUE: tuple[ValueKind, ...] = ("elementwise", "view")
BETWEEN: tuple[ValueKind, ...] = ("elementwise", "view", "softmax")
ROWS: tuple[ValueKind, ...] = ("elementwise", "softmax", "norm", "reduction", "concatenation")
"""What a region without a product is made of, besides what moves elements."""


@dataclass(frozen=True, slots=True)
class Region:
    """Values that might share a kernel, the last one its result, and the bytes that this saves.

    `first` and `second` are two of its products, for messages; they are one where it has no other.
    `prologue` are those of its members that are computed before its products (mcfuser.graph.
    prologue). Others may read them too, and compute them again.
    """

    members: tuple[relax.Var, ...]
    saved: int
    first: relax.Var
    second: relax.Var
    prologue: tuple[relax.Var, ...] = ()

    @property
    def core(self) -> tuple[relax.Var, ...]:
        """The members that are not in the prologue."""
        return tuple(v for v in self.members if v not in self.prologue)


def named(flow: Dataflow, region: Region) -> str:
    """The name of a region's chain."""
    first = region.prologue[-1] if region.prologue else region.first
    return f"{flow.name(first)}_{flow.name(region.second)}"


def product_pairs(chosen: Selection) -> Iterator[Region]:
    """Two products, the second of which reads what the first computes, and all between them."""
    flow = chosen.flow
    for first in flow.products:
        reached = _between(flow, first)
        for v in reached:
            for second in flow.readers.get(v, ()):
                if flow.kinds[second] != "product" or size(v) != size(first):
                    continue
                inner = computed_from(flow, v, reached)
                if why := chosen.escapes(inner, {*inner, second}):
                    chosen.reasons.setdefault(first, why)
                    continue
                kinds = [flow.kinds[x] for x in inner]
                rounds = 1 + kinds.count("softmax") + kinds.count("reduction") // 2
                saved = 2 * rounds * size(first) * BYTES.get(dtype(first), 4)
                yield Region((*inner, second), saved, first, second)


def _between(flow: Dataflow, first: relax.Var) -> tuple[relax.Var, ...]:
    """A product and the values computed from it that may lie between it and another one: those with
    as many elements, reductions of these to rows, and what is computed from rows alone."""
    wide, rows = {first}, set[relax.Var]()
    frontier = [first]
    while frontier:
        source = frontier.pop()
        for v in flow.readers.get(source, ()):
            if v in wide or v in rows or flow.kinds[v] not in (*BETWEEN, "reduction"):
                continue
            if flow.kinds[v] == "reduction" and source in wide:
                rows.add(v)
            elif flow.kinds[v] != "reduction" and size(v) == size(first):
                wide.add(v)
            elif flow.kinds[v] in EPILOGUE and source in rows and size(v) == size(source):
                rows.add(v)
            else:
                continue
            frontier.append(v)
    return tuple(sorted(wide | rows, key=flow.position.__getitem__))


def gated_pairs(chosen: Selection) -> Iterator[Region]:
    """Two products with the same left operand whose results are combined elementwise, as in a gated
    feed-forward block; and the same with the product that reads the result."""
    flow = chosen.flow
    reached = {v: reachable(flow, v, EPILOGUE) for v in flow.products if v not in chosen.closed}
    same_left: dict[int, list[relax.Var]] = {}
    for v in reached:
        same_left.setdefault(_identity(flow.values[v].args[0]), []).append(v)
    for first, after in reached.items():
        peers = same_left[_identity(flow.values[first].args[0])]
        for second in peers[peers.index(first) + 1 :]:
            joined = next((v for v in after if v in reached[second]), None)
            if joined is None or size(joined) != size(first):
                continue
            inner = computed_from(flow, joined, {*after, *reached[second]})
            if chosen.escapes(inner[:-1], set(inner)) is None and inner[-1].same_as(joined):
                saved = 4 * size(first) * BYTES.get(dtype(first), 4)
                after_gate = _next_product(chosen, joined)
                if after_gate is not None:
                    members = (*inner, *after_gate)
                    yield Region(members, 3 * saved // 2, first, second)
                yield Region(inner, saved, first, second)


def _identity(value: relax.Expr) -> int:
    """A number that two expressions share where they are one object."""
    return int(value.__chandle__())


def _next_product(chosen: Selection, v: relax.Var) -> tuple[relax.Var, ...] | None:
    """The only product that reads a value, after the views and casts between them."""
    path = list[relax.Var]()
    while chosen.escapes([v], set(chosen.flow.readers.get(v, ()))) is None:
        readers = chosen.flow.readers.get(v, ())
        if len(readers) != 1:
            return None
        between = chosen.flow.kinds[readers[0]] in ("view", "product")
        if not between and chosen.flow.operator(readers[0]) != "astype":
            return None
        v = readers[0]
        path.append(v)
        if chosen.flow.kinds[v] == "product":
            return tuple(path)
    return None


def next_producer(
    chosen: Selection,
    members: Sequence[relax.Var],
    refused: AbstractSet[relax.Var],
    broadcasts: bool = False,
) -> relax.Var | None:
    """The latest value that only `members` read, of a kind that may join them.

    It is None where there is none. Those that were `refused` are left out. What is broadcast may
    join only with `broadcasts`."""
    inside, found = set(members), list[relax.Var]()
    kinds = (*ROWS, *MOVING) if broadcasts else (*ROWS, "view", "slice")
    for member in members:
        for v in sources(chosen.flow.values[member]):
            if v in inside or v in refused or v in chosen.closed or v in chosen.flow.steps:
                continue
            if chosen.flow.kinds.get(v) in kinds and chosen.escapes([v], inside) is None:
                found.append(v)
    return max(found, key=chosen.flow.position.__getitem__, default=None)


def epilogues(chosen: Selection, last: relax.Var) -> Iterator[tuple[relax.Var, ...]]:
    """The sequences of values that may follow a chain's last product in its kernel, longest
    first. None ends with a cast to a wider type, or with dequantized numbers, which what reads it
    does as well, unless that is a result of the function."""
    reached = [v for v in reachable(chosen.flow, last, EPILOGUE) if v not in chosen.closed]
    for v in reversed(reached):
        wide = _widens(chosen, v) or v in chosen.flow.widened
        if wide and v not in chosen.flow.outputs:
            continue
        inner = computed_from(chosen.flow, v, reached)
        if inner[0].same_as(last) and chosen.escapes(inner[:-1], set(inner)) is None:
            yield inner


def _widens(chosen: Selection, v: relax.Var) -> bool:
    """Whether a value is another one in a type of more bytes."""
    if chosen.flow.operator(v) != "astype":
        return False
    before = dtype(chosen.flow.values[v].args[0])
    return BYTES.get(before, 4) < BYTES.get(dtype(v), 4)
