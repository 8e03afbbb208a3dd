"""Makes one matrix product of several that multiply one value by constant matrices.

Queries, keys and values are such siblings: one product with their weights side by side reads their
common operand once, and takes one launch. Results that are combined elementwise before the next
product, as a gate's, stay apart: their products share a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from mcfuser.graph.weights import OnnxModel, OnnxPart, side_by_side, with_parts

_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "Einsum"})
_SPLIT_BY_INPUT = 13
"""The opset from which Split takes the extents as an input."""


@dataclass(frozen=True)
class Sibling:
    """A product `out = x * weight`, or `out = x * weight + bias` where there is a bias.

    `nodes` compute it, and `weight` [depth, columns] and `bias` [columns] are names of
    initializers.
    """

    x: str
    weight: str
    bias: str | None
    out: str
    nodes: tuple[int, ...]


def combine_siblings(model: OnnxModel) -> OnnxModel:
    """The model in which siblings are one product, whose result is split; the same model where
    there are none."""
    proto, graph = model.proto, model.proto.graph
    weights = {t.name: t for t in graph.initializer}
    groups = list(_groups(graph, weights))
    if not groups:
        return model
    opset = next((o.version for o in proto.opset_import if not o.domain), 1)
    parts = {min(s.nodes[0] for s in group): _combined(group, model, opset) for group in groups}
    return with_parts(model, parts, {i for group in groups for s in group for i in s.nodes})


def _groups(
    graph: onnx.GraphProto, weights: Mapping[str, onnx.TensorProto]
) -> Iterator[list[Sibling]]:
    """The siblings of every value that has several."""
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(i)
    kept = {o.name for o in graph.output}
    by_operand: dict[tuple[str, int, int], list[Sibling]] = {}
    for i, node in enumerate(graph.node):
        if node.op_type != "MatMul" or node.domain:
            continue
        weight = weights.get(node.input[1])
        if weight is None or len(weight.dims) != 2 or node.input[0] in weights:
            continue
        key = (node.input[0], weight.dims[0], weight.data_type)
        by_operand.setdefault(key, []).append(_sibling(graph, i, weights, readers, kept))
    for siblings in by_operand.values():
        reached = {s: _reached(graph, readers, s.out) for s in siblings}
        apart = [
            s
            for s in siblings
            if all(reached[s].isdisjoint(reached[o]) for o in siblings if o is not s)
        ]
        if len(apart) > 1:
            yield apart


def _sibling(
    graph: onnx.GraphProto,
    i: int,
    weights: Mapping[str, onnx.TensorProto],
    readers: Mapping[str, Sequence[int]],
    kept: set[str],
) -> Sibling:
    """The product of a node, with the constant row that is added to it if there is one."""
    node = graph.node[i]
    x, weight = node.input
    (out,) = node.output
    columns = weights[weight].dims[1]
    after = readers.get(out, ())
    if len(after) == 1 and out not in kept and graph.node[after[0]].op_type == "Add":
        add = graph.node[after[0]]
        other = next((n for n in add.input if n != out), "")
        if other in weights and list(weights[other].dims) == [columns]:
            return Sibling(x, weight, other, add.output[0], (i, after[0]))
    return Sibling(x, weight, None, out, (i,))


def _reached(
    graph: onnx.GraphProto, readers: Mapping[str, Sequence[int]], out: str
) -> frozenset[int]:
    """The nodes that a value reaches before the next product."""
    found, names = set[int](), [out]
    while names:
        for i in readers.get(names.pop(), ()):
            if i not in found and graph.node[i].op_type not in _PRODUCTS:
                found.add(i)
                names += graph.node[i].output
    return frozenset(found)


def _combined(group: Sequence[Sibling], model: OnnxModel, opset: int) -> OnnxPart:
    """One product whose columns are those of all siblings."""
    name = f"{group[0].out}_siblings"
    known = {t.name: t for t in model.proto.graph.initializer}

    matrices = [model.array(known[s.weight]) for s in group]
    columns = [m.shape[1] for m in matrices]
    constants = {f"{name}_weight": side_by_side(matrices)}
    steps = [helper.make_node("MatMul", [group[0].x, f"{name}_weight"], [name], name)]
    if any(s.bias is not None for s in group):
        constants[f"{name}_bias"] = np.concatenate([
            np.zeros(m.shape[1], m.dtype) if s.bias is None else model.array(known[s.bias])
            for s, m in zip(group, matrices, strict=True)
        ])  # fmt: skip
        added = f"{name}_added"
        steps.append(helper.make_node("Add", [name, f"{name}_bias"], [added], added))
        name = added
    outs, split = [s.out for s in group], f"{name}_split"
    if opset < _SPLIT_BY_INPUT:
        steps.append(helper.make_node("Split", [name], outs, split, axis=-1, split=columns))
        return OnnxPart(steps, constants)
    constants[f"{split}_columns"] = np.asarray(columns, np.int64)
    steps.append(helper.make_node("Split", [name, f"{split}_columns"], outs, split, axis=-1))
    return OnnxPart(steps, constants)
