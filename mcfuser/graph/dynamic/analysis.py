"""Writes a model as a bucket computes it: at the bucket's upper extents, with masks at those that
are known at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcfuser.errors import ModelError
from mcfuser.graph.dynamic.axes import Point
from mcfuser.graph.dynamic.facts import ShapeFacts
from mcfuser.graph.dynamic.layout import Operand, Sign, is_dynamic, room, zeroed
from mcfuser.graph.dynamic.length import Length, Symbol, product
from mcfuser.graph.dynamic.node import PaddedNode
from mcfuser.graph.dynamic.padded import PaddedGraph
from mcfuser.graph.dynamic.rules.table import ROWS, RULES, rows
from mcfuser.graph.integer_weights import scaled_weights
from mcfuser.graph.messages import inside
from mcfuser.graph.weights import OnnxArray, OnnxModel, names_read, stored

_ANY: Sign = "any"
_LOOKED_AT = 1 << 22
"""Elements of a constant that are looked at for its sign; a larger one is any."""


@dataclass(frozen=True, slots=True)
class PaddedModel:
    """A model whose inputs have a bucket's upper extents, and after them one input of one int64 for
    each of its run-time `extents`, by name, of which some node reads those in `read`. `results`
    has, for each dimension of each output, its run-time extent, or the number that it is."""

    model: OnnxModel
    extents: tuple[str, ...]
    read: frozenset[str]
    results: tuple[tuple[Length | int, ...], ...]


def padded(points: Sequence[Point], facts: Sequence[ShapeFacts]) -> PaddedModel:
    """The model of a bucket; `points` are extents in it, its upper ones first, and `facts` are
    those of the same nodes at each point.

    Raises ModelError, naming the operator, where one cannot be computed at run-time extents.
    """
    upper = facts[0].model
    names = _input_names(upper.proto.graph, [s for s in points[0] if _varies(points, s)])
    walk = _walked(PaddedGraph(points, facts, names))
    results = tuple(walk.result(o.name) for o in upper.proto.graph.output)
    model = _assembled(upper, walk.graph)
    for name in names.values():
        model.proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [1]))
    used = {name for node in inside(model.proto.graph, onnx.NodeProto) for name in node.input}
    read = frozenset(symbol for symbol, name in names.items() if name in used)
    return PaddedModel(model, tuple(names), read, results)


@dataclass(frozen=True, slots=True)
class BoundedModel:
    """A model in which extents that elements decide are as large as they may be, until outputs are
    cut; `shapes` has those of some of its values before that, by name: run-time extents, or
    numbers."""

    model: OnnxModel
    shapes: Mapping[str, tuple[Length | int, ...]]


def bounded(
    points: Sequence[Point],
    facts: Sequence[ShapeFacts],
    found: Mapping[str, str],
    watched: Sequence[str] = (),
) -> BoundedModel:
    """The model with room for all that may be found; `points` are extents that elements decide, the
    largest ones first, `facts` are those of the same nodes at each point, and `found` has the name
    of each extent, by the value that has it. The result has the shapes of the values `watched`.

    Raises ModelError, naming the operator, where one cannot be computed so.
    """
    walk = _walked(PaddedGraph(points, facts, {}, found))
    upper = facts[0].model
    shapes = {name: walk.shape(name) for name in watched}
    for value in upper.proto.graph.output:
        walk.cut(value.name)
    return BoundedModel(_assembled(upper, walk.graph), shapes)


def _walked(graph: PaddedGraph) -> _Walk:
    """All nodes of the model, written."""
    facts, proto = graph.facts, graph.upper.model.proto
    for symbol in graph.inputs:
        graph.lengths[tuple(p[symbol] for p in graph.points)] = Symbol(symbol)
    producers = {out: node for node in proto.graph.node for out in node.output if out}
    walk = _Walk(graph, producers)
    for value in proto.graph.input:
        layout = tuple(map(zeroed, graph.layout(value.name) or ()))
        unsigned = value.type.tensor_type.elem_type == TensorProto.BOOL
        graph.operands[value.name] = Operand(
            value.name, layout, True, "nonnegative" if unsigned else "any"
        )
    scaled = scaled_weights(proto.graph)  # which stay integers until they are multiplied by
    for node in proto.graph.node:
        if any(name and not _constant(facts, name) for name in node.output):
            walk.write(node)
        elif not scaled.isdisjoint(node.output) or not walk.computed(node):
            graph.nodes.append(node)
    return walk


def _input_names(graph: onnx.GraphProto, symbols: Sequence[str]) -> dict[str, str]:
    """Names for the inputs that hold run-time extents, which code generators can use as they are
    and no value of the model has."""
    stem = "runtime_extent"
    while any(name.startswith(stem) for node in graph.node for name in (*node.input, *node.output)):
        stem += "_"
    return {symbol: f"{stem}_{i}" for i, symbol in enumerate(symbols)}


def _varies(points: Sequence[Point], symbol: str) -> bool:
    return len({p[symbol] for p in points}) > 1


def _constant(facts: Sequence[ShapeFacts], name: str) -> bool:
    return all(f.is_constant(name) for f in facts)


@dataclass
class _Walk:
    """A walk over the nodes of a model, in their order."""

    graph: PaddedGraph
    producers: Mapping[str, onnx.NodeProto]

    def operand(self, name: str) -> Operand:
        """A value in the bucket's graph. One that depends on shapes alone is computed at run time
        where it differs between shapes."""
        if name not in self.graph.operands:
            if self.graph.steady(name):
                self.graph.operands[name] = self._constant(name)
            elif name in self.producers and self.producers[name].op_type != "Constant":
                self.write(self.producers[name], computed_late=True)
            else:
                raise ModelError(
                    f"constant '{name}' depends on an extent that is known only at run time; fix "
                    "the extent with --shape"
                )
        return self.graph.operands[name]

    def write(self, node: onnx.NodeProto, computed_late: bool = False) -> None:
        """Writes a node by its rule, and notes its results."""
        seen = PaddedNode(self.graph, node, self.operand, computed_late)
        standard = not node.domain
        rule = RULES.get(node.op_type) if standard else None
        if rule is None and standard and node.op_type in ROWS:
            rule = rows
        results = rule(seen) if rule is not None else self._unknown(seen)
        for name, operand in zip(node.output, results, strict=False):
            if name:
                self.graph.explained(node, name, operand.layout)
                self.graph.operands[name] = operand

    def computed(self, node: onnx.NodeProto) -> bool:
        """Whether the results of a node that depends on shapes alone are known: they need no node,
        which might read the shape of a value that a bucket does not have."""
        facts = self.graph.upper
        names = [name for name in node.output if name]
        if not all(name in facts.from_shapes for name in names):
            return False
        arrays = {name: facts.array(name) for name in names}
        if any(a is None for a in arrays.values()):
            return False
        self.graph.known.update((n, a) for n, a in arrays.items() if a is not None)
        return True

    def _unknown(self, seen: PaddedNode) -> list[Operand]:
        """An operator without a rule, none of whose values have padded positions."""
        node = seen.node
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            raise seen.refusal("it has branches or a body of its own")
        read = [(i, seen.operand(i)) for i, name in enumerate(node.input) if name]
        for i, x in read:
            for d, dim in enumerate(x.layout):
                if is_dynamic(dim):
                    raise seen.refusal(
                        f"dimension {d} of its input '{node.input[i]}' has such an extent, and how "
                        "it computes there is not known"
                    )
        names = seen.write([seen.operand(i).name if n else "" for i, n in enumerate(node.input)])
        return [
            Operand(name, seen.result_layout(i) if node.output[i] else (), False)
            for i, name in enumerate(names)
        ]

    def _constant(self, name: str) -> Operand:
        layout = self.graph.layout(name) or ()
        finite, sign = True, _ANY
        facts = self.graph.upper
        shape = facts.shape(name) or ()
        array = facts.array(name) if np.prod(shape) <= _LOOKED_AT else None
        if array is not None and array.size and array.dtype.kind in "biuf":
            finite = bool(np.isfinite(array).all())
            sign = _sign(array)
        return Operand(name, layout, finite, sign)

    def result(self, name: str) -> tuple[Length | int, ...]:
        """The run-time shape of an output, which is given its name."""
        value, lengths = self._compacted(name)
        if value.name != name:
            self.rename(name)
            self.graph.nodes.append(
                helper.make_node("Identity", [value.name], [name], f"{name}/result")
            )
        return lengths

    def cut(self, name: str) -> None:
        """Gives an output its name, and cuts it to its run-time shape."""
        value, lengths = self._compacted(name)
        dims = [d for d, length in enumerate(lengths) if not isinstance(length, int)]
        if not dims:
            self.result(name)
            return
        g, read = self.graph, value.name
        ends = [g.write_length(one) for one in lengths if not isinstance(one, int)]
        end = ends[0] if len(ends) == 1 else g.op("Concat", *ends, axis=0)
        free = self.rename(name)
        inputs = [free if read == name else read, g.ints(*[0] * len(dims)), end, g.ints(*dims)]
        g.nodes.append(helper.make_node("Slice", inputs, [name], f"{name}/cut"))

    def _compacted(self, name: str) -> tuple[Operand, tuple[Length | int, ...]]:
        """An output whose valid elements come first in each dimension, and its run-time shape."""
        graph, value = self.graph, self.operand(name)
        node = self.producers.get(name) or helper.make_node("Identity", [name], [name], name)
        for d in range(len(value.layout)):
            value = graph.compacted(value, d, node)
        return value, self._lengths(value, node, name)

    def shape(self, name: str) -> tuple[Length | int, ...]:
        """The run-time shape of a value."""
        return self._lengths(self.operand(name), self.producers[name], name)

    def _lengths(self, value: Operand, node: onnx.NodeProto, name: str) -> tuple[Length | int, ...]:
        lengths: list[Length | int] = []
        for d, dim in enumerate(value.layout):
            if not is_dynamic(dim):
                lengths.append(room(dim))
                continue
            found = [self.graph.length(f.extents) for f in dim]
            length = found[0] if len(found) == 1 else product(found)
            if length is None:
                raise self.graph.refusal(
                    node, f"the extent of dimension {d} of '{name}' is not known"
                )
            lengths.append(length)
        return tuple(lengths)

    def rename(self, name: str) -> str:
        """Makes an output's name free: what has it so far has another one, which this gives."""
        other = f"{name}/unpadded"
        for node in self.graph.nodes:
            for i, out in enumerate(node.output):
                if out == name:
                    node.output[i] = other
            for i, read in enumerate(node.input):
                if read == name:
                    node.input[i] = other
        return other


def _sign(array: OnnxArray) -> Sign:
    least = array.min()
    return "positive" if least > 0 else "nonnegative" if least >= 0 else "any"


def _assembled(upper: OnnxModel, graph: PaddedGraph) -> OnnxModel:
    proto = onnx.ModelProto()
    proto.CopyFrom(upper.proto)
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(graph.nodes)
    proto.graph.initializer.extend(graph.constants)
    read = names_read(proto.graph)
    kept = [w for w in proto.graph.initializer if w.name in read]
    del proto.graph.initializer[:]  # a table that only constant positions read is read no more
    proto.graph.initializer.extend(kept)
    weights = {name: array for name, array in upper.weights.items() if name in read}
    proto.graph.initializer.extend(
        stored(name, array, weights) for name, array in graph.known.items() if name in read
    )
    return OnnxModel(proto, weights)
