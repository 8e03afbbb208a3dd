"""What can be found wrong with a model in the web process, which has no TVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from google.protobuf.message import DecodeError

from mcfuser.graph.read import bind, read

Inspect = Callable[[bytes, Mapping[str, tuple[int, ...]]], None]


def inspect_model(model: bytes, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError where the bytes are no valid ONNX model with these input shapes.

    Whether TVM's importer knows each of ONNX's own operators is left to the worker, which has
    the importer's table.
    """
    bind(read(model, _operators(model)), shapes)


def _operators(model: bytes) -> frozenset[str]:
    """ONNX's operators, and those of the other known domain that the model uses."""
    standard = {schema.name for schema in onnx.defs.get_all_schemas()}
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except DecodeError:
        return frozenset(standard)  # `read` says what is wrong
    foreign = {node.op_type for node in proto.graph.node if node.domain == "com.microsoft"}
    return frozenset(standard | foreign)
