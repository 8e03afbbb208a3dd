"""Which run-time extent counts rows that a model computes by themselves: more of them than a module
takes at once are then computed slice by slice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcfuser.errors import InputError
from mcfuser.graph.check import answer, model_tolerance, reference_session
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.dynamic.analysis import PaddedModel
from mcfuser.graph.dynamic.axes import RuntimeExtent
from mcfuser.graph.dynamic.bucket import DynamicModel
from mcfuser.graph.dynamic.length import Length, Symbol, symbols
from mcfuser.measure.tolerance import difference


def sliced_extent(model: DynamicModel, whole: PaddedModel) -> RuntimeExtent | None:
    """The extent along which a model may be computed in slices; None where there is none.

    `whole` is the model over all of its ranges. Any number of rows above the highest is a sum of
    numbers in the range. Each output has the extent as it is in one dimension, and in no other.
    Padding needed no mask along it, so that no row is computed from rows behind it. And onnxruntime
    computes random rows together as it does in two slices, which it would not where rows are
    counted, summed or joined in any other way.
    """
    for extent in model.shapes.extents:
        per_input = len(extent.inputs) == len(extent.places)
        divisible = 2 * extent.low <= extent.high + 1
        shown = all(_once(shape, extent.name) for shape in whole.results)
        if per_input and divisible and shown and whole.results and extent.name not in whole.read:
            return extent if _rows_alone(model, extent) else None
    return None


def _once(shape: Sequence[Length | int], name: str) -> bool:
    """One dimension is this extent, and no other depends on it."""
    found = [d for d in shape if not isinstance(d, int) and name in symbols(d)]
    return found == [Symbol(name)]


def _rows_alone(model: DynamicModel, extent: RuntimeExtent) -> bool:
    """onnxruntime gives the same for rows in two slices as for all of them."""
    point = {e.name: (e.low + e.high) // 2 for e in model.shapes.extents}
    point[extent.name] = 2 * extent.low + 1
    try:
        fixed = model.fixed(point)
        reference = reference_session(model.checked)
        feeds = inputs(fixed, np.random.default_rng(0))
        together = answer(reference, feeds)
        ends = (0, extent.low + 1), (extent.low + 1, 2 * extent.low + 1)
        first, second = (answer(reference, _rows(feeds, extent, *pair)) for pair in ends)
    except InputError:
        return False
    passes = model_tolerance(fixed.proto)
    for whole, a, b in zip(together, first, second, strict=True):
        axes = [d for d in range(whole.ndim) if a.shape[d] + b.shape[d] == whole.shape[d]]
        if not any(difference(np.concatenate((a, b), d), whole) <= passes for d in axes):
            return False
    return True


def _rows(feeds: Feeds, extent: RuntimeExtent, start: int, end: int) -> Feeds:
    """The inputs with some of the rows."""
    cut = dict(feeds)
    for name, axis in extent.places:
        cut[name] = np.ascontiguousarray(feeds[name].take(range(start, end), axis))
    return cut
