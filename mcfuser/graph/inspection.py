"""What can be found wrong with a model without TVM. Only onnx is needed here."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from mcfuser.graph.bind import bind
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.read import parse, settle
from mcfuser.graph.sizes import check_sizes


def inspect(
    model: bytes, shapes: Mapping[str, tuple[int, ...]], limits: ModelLimits = DEFAULTS
) -> None:
    """Raises ModelError where the bytes are no valid ONNX model with these input shapes.

    Whether TVM's importer knows each of ONNX's own operators is left to the compilation, which
    has the importer's table.
    """
    proto = parse(model, limits)
    proto = settle(proto, _operators(proto), limits)
    bind(proto, shapes, limits)
    check_sizes(proto, limits)


def _operators(proto: onnx.ModelProto) -> frozenset[str]:
    """ONNX's operators, and those of the other known domain that the model uses."""
    standard = {schema.name for schema in onnx.defs.get_all_schemas()}
    nodes = inside(proto, onnx.NodeProto)
    return frozenset(standard | {n.op_type for n in nodes if n.domain == "com.microsoft"})
