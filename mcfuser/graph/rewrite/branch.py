"""An If as the nodes of one of its branches (the one that is taken, or the only one that can be
computed), or of both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.rewrite.inner import WrittenNodes, copied, opened
from mcfuser.graph.rewrite.known import KnownValues, fixed_shape
from mcfuser.graph.weights import OnnxArray

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}


def taken(node: onnx.NodeProto, known: KnownValues) -> onnx.GraphProto | None:
    """The branch of an If that is taken; None where that is not known before the model runs."""
    if node.op_type != "If" or node.domain:
        return None
    condition = known.array(node.input[0])
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if bool(np.all(condition)) else "else_branch"
    return next((a.g for a in node.attribute if a.name == name), None)


def written_out(node: onnx.NodeProto, branch: onnx.GraphProto, known: KnownValues) -> WrittenNodes:
    """The nodes and constants that replace an If by its branch."""
    graph, constants = opened(node, branch, known)
    return copied(graph, node.output, node.name, known), constants


def guarded(
    node: onnx.NodeProto, branch: onnx.GraphProto, then: bool, known: KnownValues
) -> WrittenNodes | None:
    """The nodes and constants that replace an If by a branch, that for a condition which holds if
    `then`, where the other one cannot be computed at the shapes of its inputs; None where a result
    is no float.

    Where the condition asks for the other branch, nothing is right, so no result is finite: each is
    divided by the condition.
    """
    kinds = [v.type.tensor_type.elem_type or known.dtype(v.name) for v in branch.output]
    if not set(kinds) <= _FLOATS:
        return None
    results = [known.fresh(f"{name}/computed") for name in node.output]
    inner = onnx.NodeProto(name=node.name, output=results)
    nodes, constants = written_out(inner, branch, known)
    condition, name = node.input[0], f"{node.name}/taken"
    if not then:
        nodes.append(helper.make_node("Not", [condition], [known.fresh(name)], name))
        condition = nodes[-1].output[0]
    for computed, name, kind in zip(inner.output, node.output, kinds, strict=True):
        one = known.fresh(f"{name}/taken")
        nodes.append(helper.make_node("Cast", [condition], [one], one, to=kind))
        nodes.append(helper.make_node("Div", [computed, one], [name], f"{node.name}/{name}/guard"))
    return nodes, constants


def agreed(
    node: onnx.NodeProto, branches: Sequence[Sequence[onnx.TypeProto | None]]
) -> dict[str, onnx.TypeProto]:
    """The types of an If's results, by name, that are the same in all branches and have a known
    shape; `branches` has the types of each one's results."""
    found = {}
    for name, kinds in zip(node.output, zip(*branches, strict=True), strict=True):
        forms = {
            (k.tensor_type.elem_type, fixed_shape(k)) if k is not None else (0, None) for k in kinds
        }
        if len(forms) == 1 and kinds[0] is not None and fixed_shape(kinds[0]) is not None:
            found[name] = kinds[0]
    return found


def settled(
    node: onnx.NodeProto, branches: Sequence[Sequence[OnnxArray | None]]
) -> dict[str, TensorProto]:
    """The results of an If, by name, that are one constant whichever branch is taken; `branches`
    has those results of each that are known."""
    found = {}
    for name, values in zip(node.output, zip(*branches, strict=True), strict=True):
        first = values[0]
        if first is not None and all(v is not None and _equal(first, v) for v in values):
            found[name] = numpy_helper.from_array(first, name)
    return found


def selected(node: onnx.NodeProto, known: KnownValues) -> WrittenNodes | None:
    """The nodes and constants that replace an If of several results, of which TVM has none: both
    branches are computed, and the condition selects results. None for any other node, and where
    branches may have results of unequal shapes."""
    if node.op_type != "If" or len(node.output) < 2:
        return None
    if any(known.shape(name) is None for name in node.output):
        return None
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    sides: list[list[str]] = []
    for name in ("then_branch", "else_branch"):
        results = [known.fresh(f"{result}/{name}") for result in node.output]
        inner = onnx.NodeProto(name=f"{node.name}/{name}", output=results)
        branch = next(a.g for a in node.attribute if a.name == name)
        written = written_out(inner, branch, known)
        nodes += written[0]
        constants += written[1]
        sides.append(results)
    for then, other, name in zip(*sides, node.output, strict=True):
        values = [node.input[0], then, other]
        nodes.append(helper.make_node("Where", values, [name], f"{node.name}/{name}/selected"))
    return nodes, constants


def _equal(a: OnnxArray, b: OnnxArray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b)
