"""What is known of the values of an ONNX graph: element types, shapes, small constants."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.decided import DECIDING, Decide
from mcfuser.graph.evaluate import Unfolded, evaluate
from mcfuser.graph.messages import inside
from mcfuser.graph.weights import NONE, OnnxArray, is_declared

Opsets = Sequence[onnx.OperatorSetIdProto]
_SMALL = 4096  # elements of a constant that is computed here
_ERRORS = (
    onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError,
)  # fmt: skip
_COUNTERS = 16  # elements of one that is of floats, in which some exporters count and compare
INTEGERS = frozenset({
    TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
})  # fmt: skip
"""Element types that no rounding touches."""
MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""The operators that give elements other positions and change none."""
_PATH = 64
"""The most moves after a constant that are looked through."""
_RESHAPING = frozenset(MOVES) - {"Transpose"}
_ASSEMBLING = frozenset((*MOVES, "Concat", "Slice", "Split"))
"""The operators by which exporters put weights together."""
_DECISIVE = {"And": False, "Or": True}
"""The truth of one operand that is that of the result, whatever the other one is."""


@dataclass
class KnownValues:
    """The types of the values of a model, and its constants, by name.

    `types` has every value whose element type is known; `constants` has the initializers, and few
    small numbers that nodes compute from constants and shapes; `weights` has the large initializers
    whose data is elsewhere. `names` has all names in use.
    `floats` has, by the name of integers, the float32 value that has the same numbers.
    `unsigned` has, by the name of int8 numbers, the uint8 ones that are 128 more.
    `moves` has the nodes that dequantize numbers, or move elements, by the names of their results,
    and `expanded` what those repeat that have more elements.
    `assembled` has the names of what is put together from constants alone, of any size.
    `sequences` has the names of the tensors of which each sequence consists, `listed` is the
    number of these in all, and `counts` has how many names were made from a name. `decide` gives
    the types of the results of nodes whose elements decide how many these have (graph.decided).
    """

    opsets: Opsets
    types: MutableMapping[str, onnx.TypeProto] = field(default_factory=dict)
    constants: MutableMapping[str, TensorProto] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    floats: dict[str, str] = field(default_factory=dict)
    unsigned: dict[str, str] = field(default_factory=dict)
    moves: dict[str, onnx.NodeProto] = field(default_factory=dict)
    expanded: dict[str, str] = field(default_factory=dict)
    assembled: set[str] = field(default_factory=set)
    sequences: MutableMapping[str, Sequence[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    listed: int = 0
    weights: Mapping[str, OnnxArray] = field(default_factory=lambda: NONE)
    decide: Decide | None = None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value; None where some extent of it is not known."""
        return fixed_shape(self.types[name]) if name in self.types else None

    def dtype(self, name: str) -> int | None:
        """The number that ONNX gives to a value's element type; None where it is not known."""
        return self.types[name].tensor_type.elem_type or None if name in self.types else None

    def array(self, name: str) -> OnnxArray | None:
        """The elements of a constant, also in another shape; None where the value is not known to
        be one."""
        source, seen = name, 0
        while source not in self.constants and source not in self.weights:
            made = self.moves.get(source)
            if made is None or made.op_type not in _RESHAPING or seen == _PATH:
                return None
            source, seen = made.input[0], seen + 1
        array: OnnxArray = (
            numpy_helper.to_array(self.constants[source])
            if source in self.constants
            else self.weights[source]
        )
        shape = array.shape if source == name else self.shape(name)
        return None if shape is None else array.reshape(shape)

    def is_fixed(self, name: str) -> bool:
        """Whether a value is a constant, or put together from constants alone."""
        return name in self.constants or name in self.weights or name in self.assembled

    def add_constant(self, tensor: TensorProto) -> None:
        """Adds a constant under its name."""
        self.names.add(tensor.name)
        if not is_declared(tensor):
            self.constants[tensor.name] = tensor
        self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)

    def add_graph(self, graph: onnx.GraphProto) -> None:
        """Adds the names, inputs, annotations and initializers of a graph."""
        for node in inside(graph, onnx.NodeProto):
            self.names.update(node.input, node.output)
        for value in (*graph.input, *graph.output, *graph.value_info):
            self.names.add(value.name)
            if value.type.tensor_type.elem_type:
                self.types[value.name] = value.type
        for tensor in graph.initializer:
            self.add_constant(tensor)

    def fresh(self, name: str) -> str:
        """A name that nothing has yet, made from `name`; it is in use from now on."""
        made = name
        while made in self.names:
            self.counts[name] = self.counts.get(name, 0) + 1
            made = f"{name}_{self.counts[name]}"
        self.names.add(made)
        return made

    def add_node(self, node: onnx.NodeProto) -> None:
        """Adds what can be told of a node's results, where it is not known yet."""
        if node.op_type == "Constant" and not node.domain:
            self._add_literal(node)
            return
        if node.op_type in MOVES and not node.domain:
            self.moves[node.output[0]] = node
        if node.op_type == "Expand" and not node.domain:
            self.expanded[node.output[0]] = node.input[0]
        fixed = all(self.is_fixed(name) for name in node.input if name)
        if fixed and node.op_type in _ASSEMBLING and not node.domain:
            self.assembled.update(node.output)
        if self.decide is not None and not fixed and node.op_type in DECIDING and not node.domain:
            self.types.update(self.decide(node, self))
        if any(self.shape(name) is None for name in node.output if name):
            self._infer(node)
        self._compute(node)

    def _add_literal(self, node: onnx.NodeProto) -> None:
        """Adds the value of a Constant node."""
        if (given := literal(node)) is None or len(node.output) != 1:
            return
        tensor = TensorProto()
        tensor.CopyFrom(given)
        tensor.name = node.output[0]
        self.add_constant(tensor)

    def _infer(self, node: onnx.NodeProto) -> None:
        """Adds the types that onnx infers for a node's results; none where it cannot."""
        read = [name for name in node.input if name]
        small = {n: self.constants[n] for n in read if self._is_small(n)}
        self.types.update(inferred_types(node, self.types, small, self.opsets))

    def _compute(self, node: onnx.NodeProto) -> None:
        """Adds a node's results where they are few numbers that depend on no input's values."""
        names = [name for name in node.output if name]
        if len(names) != 1 or node.domain:
            return
        most = _SMALL if self.dtype(names[0]) in INTEGERS else _COUNTERS
        shape, read = self.shape(names[0]), list(dict.fromkeys(filter(None, node.input)))
        if shape is None or math.prod(shape) > most or names[0] in self.constants:
            return
        array: OnnxArray | None = None
        if node.op_type in _DECISIVE and any(self._is(name, node.op_type) for name in read):
            array = np.full(shape, _DECISIVE[node.op_type])
        elif node.op_type == "Identity":
            array = self.array(read[0])
        elif node.op_type == "Shape":
            given = {a.name: a.i for a in node.attribute}
            extents = self.shape(node.input[0])
            if extents is not None:
                array = np.asarray(extents[given.get("start") : given.get("end")], np.int64)
        elif read and all(self._is_small(name) for name in read):
            arrays = {n: numpy_helper.to_array(self.constants[n]) for n in read}
            if any(a.dtype.kind not in "biuf" for a in arrays.values()):
                return  # numbers of less than a byte, which no kernel of onnxruntime's takes
            with contextlib.suppress(Unfolded):
                array = evaluate(node, arrays, self.opsets, _SMALL * 8)[names[0]]
        if array is not None:
            self.add_constant(numpy_helper.from_array(array, names[0]))

    def _is(self, name: str, kind: str) -> bool:
        """Whether a truth is known that decides a conjunction or disjunction alone."""
        array = self.array(name) if self._is_small(name) else None
        return array is not None and bool(np.all(array == _DECISIVE[kind]))

    def _is_small(self, name: str) -> bool:
        return name in self.constants and math.prod(self.constants[name].dims) <= _SMALL


def fixed_shape(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    """The shape of a type; None where some extent of it is not known."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    if not all(d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)


def literal(node: onnx.NodeProto) -> TensorProto | None:
    """The value of a Constant node; None of one that is no tensor of numbers."""
    if len(node.attribute) != 1:
        return None
    given = helper.get_attribute_value(node.attribute[0])
    if isinstance(given, TensorProto):
        return given
    kind = np.float32 if "float" in node.attribute[0].name else np.int64
    if node.attribute[0].name.startswith(("value_int", "value_float")):
        return numpy_helper.from_array(np.asarray(given, kind))
    return None


def inferred_types(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, TensorProto],
    opsets: Opsets,
) -> dict[str, onnx.TypeProto]:
    """The types that onnx infers for a node's results from those of its operands, of which some are
    small `constants`; none where it cannot."""
    read = [name for name in node.input if name]
    version = next((o.version for o in opsets if o.domain == node.domain), None)
    if version is None or any(name not in types for name in read):
        return {}
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        return {}  # branches read values of the graph around them
    with contextlib.suppress(*_ERRORS):
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        known = {n: types[n] for n in read}
        return dict(
            onnx.shape_inference.infer_node_outputs(
                schema, node, known, dict(constants), None, list(opsets)
            )
        )
    return {}


def missing_shapes(known: KnownValues, names: Iterable[str]) -> list[str]:
    """Those of the values whose types or shapes are not known."""
    return [n for n in names if n and (known.shape(n) is None or known.dtype(n) is None)]
