"""The state of one attempt to lift Relax bindings to a chain (mcfuser.graph.lift)."""

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
    """A value that the chain computes: its expression, its axes, and their strides in the value."""

    expr: Expr
    axes: tuple[int, ...]
    layout: AxisStrides


@dataclass
class Attempt:
    """One attempt to lift the bindings of a chain.

    `flow` is the function and `closed` are the values inside other chains. `factors` has the
    extents of the axes into which a dimension is split, by the dimension's number; others are one
    axis each. `names` has tensor names by role (lift.NAMES). `values` are those that the chain
    computes, `dimensions` the axes of each dimension so far, and `batch` the batch axes.
    """

    flow: Dataflow
    closed: frozenset[relax.Var]
    factors: Mapping[int, tuple[int, ...]]
    names: Mapping[str, str]
    draft: Draft = field(default_factory=Draft)
    values: dict[relax.Var, ChainValue] = field(default_factory=dict)
    dimensions: list[tuple[int, ...]] = field(default_factory=list)
    batch: set[int] = field(default_factory=set)

    def dimension(self, extent: int) -> list[tuple[int, int]]:
        """Makes the axes of a new dimension, outermost first, with their strides along it.

        There are none where the extent is 1.
        """
        ordinal = len(self.dimensions)
        factors = self.factors.get(ordinal, (extent,) if extent > 1 else ())
        start = len(self.draft.sizes)
        axes = tuple(range(start, start + len(factors)))
        self.draft.sizes.update(zip(axes, factors, strict=True))
        self.dimensions.append(axes)
        return list(zip(axes, dense(factors), strict=True))


def followed_views(s: Attempt, view: LaidOutValue) -> LaidOutValue:
    """The same elements in the value that is stored, past all views that compute nothing.

    Raises Straddle where such a view splits a batch axis.
    """
    while view.value not in s.closed:
        try:
            before = step(s.flow, view, s.draft.sizes)
        except Straddle as cut:
            if cut.axis in s.batch:
                raise
            break
        except Unliftable:
            break
        if before is None:
            break
        view = before
    return view


def input_tensor(
    s: Attempt, view: LaidOutValue, order: tuple[int, ...], names: Sequence[str]
) -> str:
    """The name of the chain's input with these elements; a new input if there is none yet.

    A new one has the first of `names` that is free, and `order` as the order of its axes if it is
    constant.
    """
    for name, known in s.draft.sources.items():
        same = known.value.same_as(view.value) and known.layout == view.layout
        if same and known.offset == view.offset:
            return name
    name = s.draft.fresh(names)
    s.draft.sources[name] = DraftInput(
        view.value, view.layout, view.offset, order, dtype(view.value), array(view.value)
    )
    return name


def filled_number(value: relax.Expr) -> float | bool | None:
    """The number that all elements of a constant have; None where there is no such number."""
    constant = array(value)
    if constant is None or not constant.size or (constant != constant.flat[0]).any():
        return None
    first = constant.flat[0].item()
    return first if isinstance(first, bool) else float(first)


def written_tensors(s: Attempt) -> set[str]:
    """The tensors that the operators so far write."""
    return {operator.out for operator in s.draft.operators}


def stored_tensor(s: Attempt, value: ChainValue, *names: str) -> str:
    """The tensor that holds a value of the chain.

    Where no operator writes it yet, one is added, whose result has the first of `names` that is
    free.
    """
    if isinstance(value.expr, Read) and value.expr.tensor in written_tensors(s):
        return value.expr.tensor
    out = s.draft.fresh(names)
    s.draft.operators.append(DraftOperator(out, value.axes, value.expr))
    return out
