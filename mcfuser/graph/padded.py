"""Windows of a value with a number around it, as windows of the value itself (chain.Padding)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import relax

from mcfuser.chain import dense
from mcfuser.graph.attempt import Attempt, followed_views
from mcfuser.graph.dataflow import array, shape
from mcfuser.graph.views import (
    LaidOutPadding,
    LaidOutValue,
    Straddle,
    Unliftable,
    sliding_strides,
    within,
)


def without_padding(s: Attempt, view: LaidOutValue, channelwise: bool) -> LaidOutValue:
    """The same elements in the value that a number has been written around, past the views between;
    the view itself where there is no such number.

    What sums over windows of one channel alone (`channelwise`) has lanes along lines, and so reads
    no view in which these lie apart; or across channels, where these are stored last.
    """
    inner = _inner(s, view)
    if inner is None:
        return view
    try:
        found = _followed(s, inner)
    except (Straddle, Unliftable):
        return inner
    apart = any(n == 1 and found.layout.get(a) != 1 for a, n in inner.layout.items())
    across = found.value in s.flow.channels_last
    return inner if channelwise and apart and not across else found


@dataclass(frozen=True, slots=True)
class _Written:
    """A number in positions that are added to each dimension of `data`, so many before its own."""

    data: relax.Expr
    before: tuple[int, ...]
    number: float


def _written(s: Attempt, value: relax.Expr) -> _Written | None:
    if not isinstance(value, relax.Var) or value in s.closed:
        return None
    call = s.flow.values.get(value)
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.nn.pad":
        return None
    number, width = float(call.attrs.pad_value), [int(n) for n in call.attrs.pad_width]
    if str(call.attrs.pad_mode) != "constant" or not math.isfinite(number) or min(width) < 0:
        return None
    data = call.args[0]
    return _Written(data, tuple(width[::2]), number) if array(data) is None else None


def _inner(s: Attempt, view: LaidOutValue) -> LaidOutValue | None:
    """The same elements in what the value of a view is written around."""
    found = _written(s, view.value)
    if found is None or view.offset or view.padding:
        return None
    try:
        along = within(view.layout, s.draft.sizes, shape(view.value))
    except (Straddle, Unliftable):
        return None
    extents, layout, padding = shape(found.data), dict[int, int](), list[LaidOutPadding]()
    for d, (axes, unit) in enumerate(zip(along, dense(extents), strict=True)):
        layout |= {a: step * unit for a, step in axes}
        last = sum(step * (s.draft.sizes[a] - 1) for a, step in axes) - found.before[d]
        if found.before[d] or last >= extents[d]:
            if not axes:
                return None
            names = tuple(a for a, _ in axes)
            padding.append(LaidOutPadding(names, extents[d], unit, found.before[d], found.number))
    order = {a: layout[a] for a in view.layout}
    return LaidOutValue(found.data, order, 0, tuple(padding))


def _followed(s: Attempt, view: LaidOutValue) -> LaidOutValue:
    """The same elements past views of what is padded: each dimension with padding is followed as an
    axis of its own."""
    stands = {-1 - i: p for i, p in enumerate(view.padding)}
    moving = {a for p in view.padding for a in p.axes}
    layout = {a: n for a, n in view.layout.items() if a not in moving}
    layout |= {a: p.stride for a, p in stands.items()}
    sizes = {**s.draft.sizes, **{a: p.extent for a, p in stands.items()}}
    found = followed_views(s, LaidOutValue(view.value, layout, view.offset), sizes)
    if not stands.keys() <= found.layout.keys():
        raise Unliftable("a view repeats a dimension that has padding")
    padding = tuple(replace(p, stride=found.layout[a]) for a, p in stands.items())
    return LaidOutValue(found.value, _strides(view, found, padding), found.offset, padding)


def _strides(
    view: LaidOutValue, found: LaidOutValue, padding: Sequence[LaidOutPadding]
) -> dict[int, int]:
    """The strides of a view's axes where its dimensions with padding have those of `padding`."""
    every = {**found.layout, **sliding_strides(view.layout, view.padding, padding)}
    return {a: every[a] for a in view.layout if a in every}
