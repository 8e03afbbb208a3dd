"""Makes one matrix product of several that multiply one value by constant matrices.

Queries, keys and values are such siblings: one product with their weights side by side reads their
common operand once, and takes one launch. So are the projections of a time or a class by which
each block of a diffusion model scales what it normalizes: products of a row or two, whose time is
that of their weights, and a stream of many weights waits for memory once. Results that are combined
elementwise before the next product, as a gate's, stay apart: their products share a chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import helper

from mcfuser.graph.sizes import inferred_shapes, outline
from mcfuser.graph.weights import (
    OnnxModel,
    OnnxPart,
    names_elsewhere,
    side_by_side,
    with_parts,
)

_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "Einsum"})
_SPLIT_BY_INPUT = 13
"""The opset from which Split takes the extents as an input."""
_ACTIVATIONS = frozenset({
    "Celu", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu",
    "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh",
})  # fmt: skip
_ARITHMETIC = frozenset({"Add", "Cast", "Div", "Mul", "Pow", "Sub"})
"""What an activation may be written with."""
_MOST = 1 << 28
"""The elements of the weights of one product, at most: reading them takes a kernel so long that a
launch is nothing beside it, and 32 bits hold their offsets."""


@dataclass(frozen=True)
class Sibling:
    """A product `out = x * weight`, or `out = x * weight + bias` where there is a bias.

    `nodes` compute it, and `weight` [depth, columns], or [columns, depth] where it is `transposed`,
    and `bias` [columns] are names of initializers.
    """

    x: str
    weight: str
    bias: str | None
    out: str
    nodes: tuple[int, ...]
    transposed: bool


@dataclass(frozen=True)
class _Graph:
    """What a search for siblings looks up."""

    proto: onnx.ModelProto

    @cached_property
    def weights(self) -> Mapping[str, onnx.TensorProto]:
        return {t.name: t for t in self.proto.graph.initializer}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the nodes that read a value."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.proto.graph.node):
            for name in node.input:
                found.setdefault(name, []).append(i)
        return found

    @cached_property
    def kept(self) -> frozenset[str]:
        """The values that something else than a node reads."""
        return frozenset(names_elsewhere(self.proto.graph))

    @cached_property
    def elements(self) -> Mapping[str, int]:
        """The elements of a value; none where they are not known."""
        inferred = inferred_shapes(outline(self.proto)).graph
        return {
            v.name: math.prod(d.dim_value for d in v.type.tensor_type.shape.dim)
            for v in (*inferred.value_info, *inferred.output)
        }


def combine_siblings(model: OnnxModel) -> OnnxModel:
    """The model in which siblings are one product, whose result is split; the same model where
    there are none."""
    groups = list(_groups(_Graph(model.proto)))
    if not groups:
        return model
    opset = next((o.version for o in model.proto.opset_import if not o.domain), 1)
    parts = {min(s.nodes[0] for s in group): _combined(group, model, opset) for group in groups}
    return with_parts(model, parts, {i for group in groups for s in group for i in s.nodes})


def _groups(graph: _Graph) -> Iterator[list[Sibling]]:
    """The siblings of every value that has several, as many as one product takes."""
    by_operand: dict[tuple[str, int, int, bool], list[Sibling]] = {}
    for i in range(len(graph.proto.graph.node)):
        if (s := _sibling(graph, i)) is not None:
            weight = graph.weights[s.weight]
            key = (s.x, weight.dims[1 if s.transposed else 0], weight.data_type, s.transposed)
            by_operand.setdefault(key, []).append(s)
    for siblings in by_operand.values():
        if len(siblings) > 1:
            reached = {s: _reached(graph, s.out) for s in siblings}
            apart = [
                s
                for s in siblings
                if all(reached[s].isdisjoint(reached[o]) for o in siblings if o is not s)
            ]
            activated = [s for s in apart if _activated(graph, s.out)]
            if len(activated) == 1:
                apart.remove(*activated)
            yield from (run for run in _runs(graph, apart) if len(run) > 1)


def _runs(graph: _Graph, siblings: Sequence[Sibling]) -> Iterator[list[Sibling]]:
    """The siblings in their order, cut where the weights of one product become too many."""
    run, held = list[Sibling](), 0
    for s in siblings:
        own = math.prod(graph.weights[s.weight].dims)
        if held + own > _MOST:
            yield run
            run, held = [], 0
        run.append(s)
        held += own
    yield run


def _sibling(graph: _Graph, i: int) -> Sibling | None:
    """The product of a node by a constant matrix, with the constant row that is added to it if
    there is one; None if it is none."""
    node, weights = graph.proto.graph.node[i], graph.weights
    if node.op_type not in ("MatMul", "Gemm") or node.domain or node.input[0] in weights:
        return None
    x, weight, *added = node.input
    (out,) = node.output
    if weight not in weights or len(weights[weight].dims) != 2:
        return None
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if given.get("transA", 0) or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
        return None
    transposed = bool(given.get("transB", 0))
    row = [weights[weight].dims[0 if transposed else 1]]
    if added and added[0]:
        is_row = added[0] in weights and list(weights[added[0]].dims) == row
        return Sibling(x, weight, added[0], out, (i,), transposed) if is_row else None
    after = graph.readers.get(out, ())
    if len(after) == 1 and out not in graph.kept:
        add = graph.proto.graph.node[after[0]]
        other = next((n for n in add.input if n != out), "")
        if add.op_type == "Add" and other in weights and list(weights[other].dims) == row:
            return Sibling(x, weight, other, add.output[0], (i, after[0]), transposed)
    return Sibling(x, weight, None, out, (i,), transposed)


def _reached(graph: _Graph, out: str) -> set[int]:
    """The nodes that a value reaches before the next product, or before a larger value, which reads
    it for many elements and shares no chain with its product."""
    size = graph.elements.get(out, 0)

    def shared(node: onnx.NodeProto) -> bool:
        grown = size and any(graph.elements.get(o, 0) > size for o in node.output)
        return node.op_type not in _PRODUCTS and not grown

    return _onward(graph, out, shared)


def _activated(graph: _Graph, out: str) -> bool:
    """Whether what reads a value is an activation of it, and nothing else."""
    nodes, steps = graph.proto.graph.node, _ACTIVATIONS | _ARITHMETIC
    found = _onward(graph, out, lambda node: node.op_type in steps)
    own = {out, *(o for i in found for o in nodes[i].output), *graph.weights}
    alone = found.issuperset(graph.readers.get(out, ())) and out not in graph.kept
    alone &= own.issuperset(x for i in found for x in nodes[i].input)
    return alone and any(nodes[i].op_type in _ACTIVATIONS for i in found)


def _onward(graph: _Graph, out: str, through: Callable[[onnx.NodeProto], bool]) -> set[int]:
    """The nodes of some kind that a value reaches through nodes of that kind alone."""
    nodes, found, names = graph.proto.graph.node, set[int](), [out]
    while names:
        for i in graph.readers.get(names.pop(), ()):
            if i not in found and through(nodes[i]):
                found.add(i)
                names += nodes[i].output
    return found


def _combined(group: Sequence[Sibling], model: OnnxModel, opset: int) -> OnnxPart:
    """One product whose columns are those of all siblings."""
    name, across = f"{group[0].out}_siblings", int(not group[0].transposed)
    known = {t.name: t for t in model.proto.graph.initializer}

    matrices = [model.array(known[s.weight]) for s in group]
    columns = [m.shape[across] for m in matrices]
    constants = {f"{name}_weight": side_by_side(matrices, across)}
    operands = [group[0].x, f"{name}_weight"]
    steps = [
        helper.make_node("MatMul", operands, [name], name)
        if across
        else helper.make_node("Gemm", operands, [name], name, transB=1)
    ]
    if any(s.bias is not None for s in group):
        constants[f"{name}_bias"] = np.concatenate([
            np.zeros(c, m.dtype) if s.bias is None else model.array(known[s.bias])
            for s, m, c in zip(group, matrices, columns, strict=True)
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
