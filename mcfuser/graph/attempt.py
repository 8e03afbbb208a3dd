"""One attempt at lifting: the axes so far, the values inside the chain, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm import relax

from mcfuser.expr import Expr, Read
from mcfuser.graph.dataflow import Dataflow, array, dtype
from mcfuser.graph.draft import Draft, DraftInput, DraftOperator
from mcfuser.graph.views import AxisStrides, LaidOutValue, Straddle, Unliftable, dense, step


@dataclass(frozen=True, slots=True)
class ChainValue:
    """A value inside the chain: what it is, its axes, and how they lie in it."""

    expr: Expr
    axes: tuple[int, ...]
    layout: AxisStrides


@dataclass
class Attempt:
    """One attempt; `factors` says how dimensions are cut into axes."""

    flow: Dataflow
    closed: frozenset[relax.Var]
    factors: Mapping[int, tuple[int, ...]]
    names: Mapping[str, str]
    draft: Draft = field(default_factory=Draft)
    values: dict[relax.Var, ChainValue] = field(default_factory=dict)
    dimensions: list[tuple[int, ...]] = field(default_factory=list)
    batch: set[int] = field(default_factory=set)

    def dimension(self, extent: int) -> list[tuple[int, int]]:
        """New axes, each with its stride along the dimension; none where the extent is 1."""
        ordinal = len(self.dimensions)
        factors = self.factors.get(ordinal, (extent,) if extent > 1 else ())
        start = len(self.draft.sizes)
        axes = tuple(range(start, start + len(factors)))
        self.draft.sizes.update(zip(axes, factors, strict=True))
        self.dimensions.append(axes)
        return list(zip(axes, dense(factors), strict=True))


def followed(s: Attempt, place: LaidOutValue) -> LaidOutValue:
    """The place of the same elements in the value that the views before it start from."""
    while place.value not in s.closed:
        try:
            before = step(s.flow, place, s.draft.sizes)
        except Straddle as cut:
            if cut.axis in s.batch:
                raise
            break
        except Unliftable:
            break
        if before is None:
            break
        place = before
    return place


def source(s: Attempt, place: LaidOutValue, order: tuple[int, ...], names: Sequence[str]) -> str:
    for name, known in s.draft.sources.items():
        same = known.value.same_as(place.value) and known.layout == place.layout
        if same and known.offset == place.offset:
            return name
    name = s.draft.fresh(names)
    s.draft.sources[name] = DraftInput(
        place.value, place.layout, place.offset, order, dtype(place.value), array(place.value)
    )
    return name


def number(value: relax.Expr) -> float | bool | None:
    """The number that fills a constant."""
    found = array(value)
    if found is None or not found.size or (found != found.flat[0]).any():
        return None
    first = found.flat[0].item()
    return first if isinstance(first, bool) else float(first)


def written(s: Attempt) -> set[str]:
    return {line.out for line in s.draft.lines}


def stored(s: Attempt, value: ChainValue, *names: str) -> str:
    """The tensor that holds a value, written by an operator of its own where none does yet, under
    the first of these names that is free."""
    if isinstance(value.expr, Read) and value.expr.tensor in written(s):
        return value.expr.tensor
    out = s.draft.fresh(names)
    s.draft.lines.append(DraftOperator(out, value.axes, value.expr))
    return out
