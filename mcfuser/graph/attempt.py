"""The state of one attempt to lift Relax bindings to a chain (mcfuser.graph.lift)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from tvm import relax

from mcfuser.chain import LOWEST, dense
from mcfuser.expr import Expr, Read, call
from mcfuser.graph.dataflow import Dataflow, array, dtype, shape
from mcfuser.graph.draft import Draft, DraftInput, DraftOperator, moved
from mcfuser.graph.layout import stored_view
from mcfuser.graph.views import (
    Along,
    Axes,
    AxisStrides,
    LaidOutValue,
    Straddle,
    Unliftable,
    split,
    step,
    within,
)

TRANSPOSED = "it combines a value with its own transpose"


@dataclass(frozen=True, slots=True)
class ChainValue:
    """A value that the chain computes: its expression, its axes, and their strides in the value.

    Where there is a condition `shown`, the value is the lowest number outside of it; where there is
    a condition `nonzero`, it is zero outside of that. The expression does not say so.
    """

    expr: Expr
    axes: tuple[int, ...]
    layout: AxisStrides
    shown: Expr | None = None
    nonzero: Expr | None = None

    @property
    def plain(self) -> ChainValue:
        """The same value, whose expression says what it is outside of conditions."""
        e = self.expr
        if self.shown is not None:
            e = call("select", self.shown, e, LOWEST)
        if self.nonzero is not None:
            e = call("select", self.nonzero, e, 0.0)
        return replace(self, expr=e, shown=None, nonzero=None)


@dataclass
class Attempt:
    """One attempt to lift the bindings of a chain.

    `flow` is the function and `closed` are the values inside other chains. `factors` has the
    extents of the axes into which a dimension is split, by the dimension's number; others are one
    axis each. `names` has tensor names by role (lift.NAMES). A `quantized` chain reads scales and
    zero points, which every layer has of its own, so that equal layers share a kernel. `values`
    are those that the chain computes, of which the last is its `result`; `dimensions` are the axes
    of each dimension so far, and `batch` the batch axes.
    """

    flow: Dataflow
    closed: frozenset[relax.Var]
    factors: Mapping[int, tuple[int, ...]]
    names: Mapping[str, str]
    result: relax.Var
    quantized: bool = False
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
        start = max(self.draft.sizes, default=-1) + 1
        axes = tuple(range(start, start + len(factors)))
        self.draft.sizes.update(zip(axes, factors, strict=True))
        self.dimensions.append(axes)
        return list(zip(axes, dense(factors), strict=True))


def along_of(s: Attempt, value: relax.Expr) -> Along:
    """The axes along each dimension of a value that the chain computes."""
    return within(s.values[value].layout, s.draft.sizes, shape(value))


def unify(s: Attempt, pairs: Callable[[], Iterable[tuple[Axes, Axes]]]) -> None:
    """Makes both rows of axes of every pair the same: positions along them are the same positions.

    `pairs` finds the rows anew each time. Raises Straddle where an axis of one row must be split
    before, Unliftable where the axes must be told apart elsewhere.
    """
    while True:
        different = next((p for rows in pairs() if (p := _different(s, *rows)) is not None), None)
        if different is None:
            return
        _rename(s, *different)


def _different(s: Attempt, one: Axes, two: Axes) -> tuple[int, int] | None:
    """The innermost pair of axes for the same positions that differ; None where there is none. A
    row may lack axes, where its value does not vary along a part of the dimension."""
    sizes = s.draft.sizes
    for a, inner in reversed(one):
        for b, other in reversed(two):
            if a == b and inner != other:
                raise Unliftable(TRANSPOSED)
            end, far = inner * sizes[a], other * sizes[b]
            if a == b or end <= other or far <= inner:
                continue
            if inner == other and end == far:
                return a, b
            raise _straddled((a, inner, end), (b, other, far))
    return None


def _straddled(one: tuple[int, int, int], two: tuple[int, int, int]) -> Straddle:
    """The cut that brings two axes nearer to each other, each given with its stride and the end of
    its positions, some of which are the other one's. Raises Unliftable where no cut makes them the
    same."""
    (a, begin, end), (b, other, far) = sorted((one, two), key=lambda axis: axis[1])
    if begin == other and end < far:
        a, end, far = b, far, end
    cut = other if begin < other else far
    if cut % begin or end % cut:
        raise Unliftable("two values cut a dimension into parts that do not divide each other")
    return Straddle(a, cut // begin)


def _rename(s: Attempt, kept: int, gone: int) -> None:
    """Puts the axis `kept` in the place of `gone`."""
    rows = [{*o.axes, *o.over} for o in s.draft.operators]
    rows += [set(source.layout) for source in s.draft.sources.values()]
    rows += [set(value.axes) for value in s.values.values()]
    if any(kept in row and gone in row for row in rows):
        raise Unliftable(TRANSPOSED)

    def renamed(axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(kept if a == gone else a for a in axes)

    def laid_out(layout: AxisStrides) -> AxisStrides:
        return dict(zip(renamed([*layout]), layout.values(), strict=True))

    s.draft.operators[:] = [
        replace(
            o,
            axes=renamed(o.axes),
            over=renamed(o.over),
            body=moved(o.body, kept, gone),
            domain=o.domain and moved(o.domain, kept, gone),
        )
        for o in s.draft.operators
    ]
    for name, source in s.draft.sources.items():
        s.draft.sources[name] = replace(
            source,
            layout=laid_out(source.layout),
            order=renamed(source.order),
            padding=tuple(replace(p, axes=renamed(p.axes)) for p in source.padding),
        )
    for v, value in s.values.items():
        s.values[v] = ChainValue(
            moved(value.expr, kept, gone),
            renamed(value.axes),
            laid_out(value.layout),
            value.shown and moved(value.shown, kept, gone),
            value.nonzero and moved(value.nonzero, kept, gone),
        )
    s.dimensions[:] = [renamed(axes) for axes in s.dimensions]
    if gone in s.batch:
        s.batch = s.batch - {gone} | {kept}
    del s.draft.sizes[gone]


def merge_equal_inputs(s: Attempt) -> None:
    """Makes one input of several that have the same elements at other axes. All that is computed
    must be in operators by then.

    Two sums over the same operand then run over one axis. Axes that must be told apart, as those of
    a matrix and its transpose, stay as they are.
    """
    for one, two in combinations([*s.draft.sources], 2):
        first, second = s.draft.sources.get(one), s.draft.sources.get(two)
        if first is None or second is None or not first.value.same_as(second.value):
            continue
        strides = [sorted((n, a) for a, n in x.layout.items()) for x in (first, second)]
        if first.offset != second.offset or first.padding or second.padding:
            continue
        if not _alike(s, *strides):
            continue
        for (_, kept), (_, gone) in zip(*strides, strict=True):
            if kept != gone and _uses(s, kept) == _uses(s, gone):
                with suppress(Unliftable):
                    _rename(s, kept, gone)
        if s.draft.sources[one].layout == s.draft.sources[two].layout:
            s.draft.merge(one, two)


def _uses(s: Attempt, axis: int) -> tuple[bool, bool]:
    """Whether some operator keeps an axis, and whether some operator reduces it."""
    operators = s.draft.operators
    return any(axis in o.axes for o in operators), any(axis in o.over for o in operators)


def _alike(s: Attempt, one: Sequence[tuple[int, int]], two: Sequence[tuple[int, int]]) -> bool:
    """Whether two inputs have axes of the same strides and extents."""
    sizes = s.draft.sizes
    return len(one) == len(two) and all(
        m == n and sizes[a] == sizes[b] for (m, a), (n, b) in zip(one, two, strict=True)
    )


def followed_views(
    s: Attempt, view: LaidOutValue, sizes: Mapping[int, int] | None = None
) -> LaidOutValue:
    """The same elements in the value that is stored, past all views that compute nothing. `sizes`
    are the extents of the axes, where they are not those of the draft.

    Raises Straddle where such a view splits a batch axis, or one whose parts are one again where
    the value is stored.
    """
    while view.value not in s.closed:
        try:
            before = step(s.flow, view, s.draft.sizes if sizes is None else sizes)
        except Straddle as cut:
            if cut.axis in s.batch or (sizes is None and _rejoins(s, view, cut)):
                raise
            break
        except Unliftable:
            break
        if before is None:
            break
        view = before
    return view


def _rejoins(s: Attempt, view: LaidOutValue, cut: Straddle) -> bool:
    """Whether an axis that a view splits runs along memory without a gap where the value is stored
    with its channels last: the positions of a picture, numbered line by line."""
    sizes, parts = dict(s.draft.sizes), [cut.axis]
    while True:
        if cut.axis not in parts:
            return False
        layout, sizes, made = split(view.layout, sizes, cut)
        parts.insert(parts.index(cut.axis) + 1, made)
        view = replace(view, layout=layout)
        try:
            while view.value not in s.closed:
                before = step(s.flow, view, sizes)
                if before is None:
                    break
                view = before
            if view.value not in s.flow.channels_last:
                return False
            stored = stored_view(view, sizes).layout
        except Straddle as another:
            cut = another
        except Unliftable:
            return False
        else:
            return all(
                a in stored and b in stored and stored[a] == stored[b] * sizes[b]
                for a, b in pairwise(parts)
            )


def input_tensor(
    s: Attempt, view: LaidOutValue, order: tuple[int, ...], names: Sequence[str]
) -> str:
    """The name of the chain's input with these elements; a new input if there is none yet.

    A new one has the first of `names` that is free, and `order` as the order of its axes, unless it
    is stored with its channels last.
    """
    if view.value in s.flow.channels_last:
        view = stored_view(view, s.draft.sizes)
        order = tuple(sorted(view.layout, key=lambda a: -view.layout[a]))
    for name, known in s.draft.sources.items():
        same = known.value.same_as(view.value) and known.layout == view.layout
        if same and known.offset == view.offset and known.padding == view.padding:
            return name
    name = s.draft.fresh(names)
    s.draft.sources[name] = DraftInput(
        view.value, view.layout, view.offset, order, dtype(view.value), array(view.value),
        view.padding,
    )  # fmt: skip
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

    Where no operator computes it yet, one is added, whose result has the first of `names` that is
    free.
    """
    value = value.plain
    if isinstance(value.expr, Read) and value.expr.tensor in written_tensors(s):
        return value.expr.tensor
    made = DraftOperator(s.draft.fresh(names), value.axes, value.expr)
    for known in s.draft.operators:  # what two products read is stored once
        if replace(made, out=known.out) == known:
            return known.out
    s.draft.operators.append(made)
    return made.out
