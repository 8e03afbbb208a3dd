"""Writes a model of an old operator set in the operators of a newer one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

from mcfuser.errors import ModelError
from mcfuser.graph.messages import inside
from mcfuser.graph.refusal import refused
from mcfuser.graph.rewrite.known import literal
from mcfuser.graph.weights import OnnxArray, is_declared

OLDEST = 11
"""The first version of ONNX's operators that the importer and the rewrites know in all forms."""


def raised(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in the operators of version OLDEST, or the model itself where it has these or newer
    ones. Names of values and of nodes stay, and weights that are only declared stay so.

    Raises ModelError where an operator cannot be written in its newer form.
    """
    version = next((o.version for o in proto.opset_import if not o.domain), OLDEST)
    if version >= OLDEST:
        return proto
    what = f"the model's operators of opset {version} cannot be written as those of opset {OLDEST}"
    with refused(what):
        made = onnx.version_converter.convert_version(proto, OLDEST)
    resized = [n for n in inside(made.graph, onnx.NodeProto) if n.op_type == "Resize"]
    if resized:
        constants = _constants(made)
        for node in resized:
            _read_as_before(node, constants, what)
    return made


def _read_as_before(node: onnx.NodeProto, constants: Mapping[str, OnnxArray], what: str) -> None:
    """Makes a Resize read where that of opset 10 does, of which onnx's converter says nothing.

    What that version reads without interpolation is the element before a place where it enlarges,
    and the one after it where it shrinks, as onnxruntime takes it.
    """
    factors = np.asarray(constants.get(node.input[2], ()), np.float64)
    shrinks = bool(np.any(factors < 1))
    nearest = next((a.s for a in node.attribute if a.name == "mode"), b"nearest") == b"nearest"
    if nearest and shrinks and np.any(factors > 1):
        raise ModelError(
            f"{what}: node '{node.name}' (Resize) enlarges one axis and shrinks another; export "
            f"the model with opset {OLDEST} or higher"
        )
    places = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "ceil" if shrinks else "floor",
    }
    node.attribute.extend(helper.make_attribute(name, value) for name, value in places.items())


def _constants(proto: onnx.ModelProto) -> dict[str, OnnxArray]:
    """The constants whose elements are in the model's message, by name."""
    found = {
        w.name: numpy_helper.to_array(w)
        for graph in inside(proto.graph, onnx.GraphProto)
        for w in graph.initializer
        if not is_declared(w)
    }
    for node in inside(proto.graph, onnx.NodeProto):
        value = literal(node) if node.op_type == "Constant" else None
        if value is not None:
            found[node.output[0]] = numpy_helper.to_array(value)
    return found
