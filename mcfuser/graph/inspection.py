"""Checks a model as far as this is possible without TVM: only onnx is imported."""

from __future__ import annotations

import onnx

from mcfuser.extents import InputShapes, highest, ranged
from mcfuser.graph.bind import bind
from mcfuser.graph.dynamic.axes import runtime_shapes
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.read import ONNXRUNTIMES, normalized, operator_name, parse
from mcfuser.graph.sizes import check_sizes
from mcfuser.graph.wire import ModelBytes


def inspect(
    model: ModelBytes,
    shapes: InputShapes,
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
) -> None:
    """Raises ModelError where the bytes are no valid ONNX model with these input shapes, and its
    external data in `folder`.

    Whether TVM's importer has each of ONNX's operators is not checked: the importer's table is
    known only where TVM is loaded.
    """
    parsed = parse(model, limits, folder)
    proto = normalized(parsed, _operators(parsed.proto), limits).proto
    if ranged(shapes):
        runtime_shapes(proto, shapes)
    bind(proto, highest(shapes), limits)
    check_sizes(proto, limits)


def _operators(proto: onnx.ModelProto) -> frozenset[str]:
    """The names of ONNX's operators, and of those of com.microsoft that the model uses."""
    standard = {schema.name for schema in onnx.defs.get_all_schemas()}
    others = (n for n in inside(proto, onnx.NodeProto) if n.domain == "com.microsoft")
    return frozenset(standard | ONNXRUNTIMES | {operator_name(n.domain, n.op_type) for n in others})
