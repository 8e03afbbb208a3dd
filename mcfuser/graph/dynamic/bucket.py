"""One bucket of a model: the model at the bucket's upper extents, right at every shape within."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.graph.bind import bind
from mcfuser.graph.dynamic.analysis import PaddedModel, padded
from mcfuser.graph.dynamic.axes import Point, RuntimeShapes
from mcfuser.graph.dynamic.difference import first_difference
from mcfuser.graph.dynamic.facts import Evaluations, ShapeFacts, shape_facts
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.load import written_out
from mcfuser.graph.read import name_nodes
from mcfuser.graph.sizes import check_sizes
from mcfuser.graph.weights import OnnxModel

_WITHIN = ((2, 5), (5, 7), (3, 4))
"""Where, between its lowest and its upper extents, a bucket is looked at besides at these."""


@dataclass
class DynamicModel:
    """A checked ONNX model and the shapes of its inputs; what was computed at one point is kept
    for others."""

    checked: OnnxModel
    shapes: RuntimeShapes
    limits: ModelLimits
    integers: bool = True
    """Integer weights stay integers (graph.load)."""
    recurrences: RecurrenceLimits = NO_RECURRENCES
    """Recurrent nodes within these limits stay where they can (graph.load)."""
    evaluations: Evaluations = field(default_factory=dict)

    def fixed(self, point: Point) -> OnnxModel:
        """The model with the inputs' shapes at a point. Raises ModelError."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.checked.proto)
        bind(proto, self.shapes.at(point), self.limits)
        check_sizes(proto, self.limits)
        return self.checked.with_proto(proto)

    def facts(self, point: Point) -> ShapeFacts:
        """What the model computes at a point before it runs. Raises ModelError."""
        written = written_out(self.fixed(point), self.limits, self.integers, self.recurrences)
        name_nodes(written.proto.graph)
        return shape_facts(written, self.evaluations, self.original)

    @cached_property
    def original(self) -> frozenset[str]:
        """The constants that the model had before its operators were written out."""
        graph = self.checked.proto.graph
        literals = [n.output[0] for n in graph.node if n.op_type == "Constant"]
        return frozenset((*literals, *(w.name for w in graph.initializer)))


def bucket_model(model: DynamicModel, low: Point, high: Point) -> PaddedModel:
    """The model at the extents `high`, right from `low` on.

    Raises ModelError, naming the operator, where one cannot be computed at run-time extents.
    """
    points = looked_at(low, high)
    upper = model.facts(high)
    kept, facts = [high], [upper]
    for point in points[1:]:
        one = model.facts(point)
        other = first_difference(upper.model.proto.graph, one.model.proto.graph)
        if other is None:
            kept.append(point)
            facts.append(one)
        elif not any(point[s] == 1 != high[s] for s in point):
            raise ModelError(
                f"{other} is written in another way at {told(point)} than at {told(high)}; fix the "
                "extent with --shape"
            )
    for symbol in high:
        if low[symbol] != high[symbol] and len({p[symbol] for p in kept}) == 1:
            raise ModelError(
                f"the model is written in another way where extent '{symbol}' is 1; begin its "
                "range at 2, or fix it"
            )
    return padded(kept, facts)


def looked_at(low: Point, high: Point) -> list[dict[str, int]]:
    """Points of a bucket, its upper extents first: both ends, each extent's lowest with the upper
    ones of the others, and some in between. One is next to the upper end: what is rounded to a
    multiple there differs from what is not."""
    points = [dict(high), dict(low), {s: max(low[s], high[s] - 1) for s in high}]
    if len(high) > 1:
        points += [{**high, s: low[s]} for s in high if low[s] < high[s]]
    for turn in range(2):
        inner = {}
        for i, s in enumerate(high):
            part, of = _WITHIN[(turn + i) % len(_WITHIN)]
            inner[s] = low[s] + (high[s] - low[s]) * part // of
        points.append(inner)
    return [p for i, p in enumerate(points) if p not in points[:i]]


def told(point: Mapping[str, int]) -> str:
    """A point in words."""
    return ", ".join(f"{name}={extent}" for name, extent in point.items())
