"""Loads an ONNX model as a Relax module with fixed shapes and folded constants."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import onnx
import tvm
from onnx import TensorProto
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from mcfuser.chain import TF32
from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.graph.bind import bind
from mcfuser.graph.branches import combine_branches
from mcfuser.graph.common import common_values
from mcfuser.graph.constant_part import with_constants
from mcfuser.graph.contraction import einsums
from mcfuser.graph.convert import CONVERTERS
from mcfuser.graph.dataflow import extents
from mcfuser.graph.decided import Decide, decides
from mcfuser.graph.dynamic.found import with_bounds
from mcfuser.graph.external import DataFolder
from mcfuser.graph.fold import fold
from mcfuser.graph.idiom import rewrite_idioms
from mcfuser.graph.inplace import paired, updated_in_place
from mcfuser.graph.integer_weights import with_integer_weights, without_integer_weights
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.matching import calls_rewritten, with_variables
from mcfuser.graph.messages import inside
from mcfuser.graph.narrow import narrowed, to_tf32
from mcfuser.graph.precision import Narrowing
from mcfuser.graph.precompute import precomputed
from mcfuser.graph.read import check_operators, expand, name_nodes, operator_name, opset, read
from mcfuser.graph.refusal import refused, sentence
from mcfuser.graph.rewrite.apply import rewrite
from mcfuser.graph.rewrite.grouped import mark_shared
from mcfuser.graph.rewrite.loop import LOOPS
from mcfuser.graph.rewrite.table import REWRITES
from mcfuser.graph.siblings import combine_siblings
from mcfuser.graph.sizes import check_sizes
from mcfuser.graph.tensors import tensor_over
from mcfuser.graph.weights import OnnxArray, OnnxModel, is_declared
from mcfuser.graph.whole import joined_whole
from mcfuser.graph.wire import ModelBytes

# Operators that the importer handles outside its table of converters.
_DIRECT = frozenset({"If", "Constant"})
_REPLACED = frozenset(operator_name(*key) for key in REWRITES) | LOOPS.keys()
NOTHING: Mapping[str, str] = MappingProxyType({})
"""No output is written into the memory of an input."""


@dataclass(frozen=True, slots=True)
class ModelPort:
    """An input or output of a model; an extent that is known only at run time is -1."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model as a Relax module; `main` takes the inputs in order.

    `names` has the names that the module gave to values of the ONNX model, by their names there; a
    value may be gone from the module since then. `narrowing` says how products were narrowed, None
    where the model's own types stand. `integers` tells whether kernels multiply them as such.
    `in_place` has the outputs that are written into the memory of inputs, by these.
    """

    module: tvm.IRModule
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    names: Mapping[str, str]
    narrowing: Narrowing | None = None
    integers: bool = True
    in_place: Mapping[str, str] = field(default_factory=dict)


def load(
    model: ModelBytes,
    shapes: Mapping[str, tuple[int, ...]],
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
    narrow: str | None = None,
    in_place: Mapping[str, str] = NOTHING,
    integers: bool = True,
    recurrences: RecurrenceLimits = NO_RECURRENCES,
) -> Loaded:
    """The Relax module of an ONNX model; `shapes` fixes the dynamic dimensions of inputs, by name.

    `folder` has the model's external data. The products of a float32 model have operands of the
    type `narrow` (graph.precision.NARROW, or TF32) where that is given. `in_place` has the outputs
    that are written into the memory of inputs, by these. With `integers`, integer weights that are
    multiplied by stay integers (graph.integer_weights); recurrent nodes within the limits
    `recurrences` are one call for a whole sequence where they can be (graph.recurrence). Raises
    ModelError, naming the input, operator or node that cannot be used, or the limit that is
    exceeded.
    """
    written = _written(model, shapes, limits, folder, in_place, integers, recurrences)
    return imported(written, limits, narrow, in_place, integers)


def _written(
    model: ModelBytes,
    shapes: Mapping[str, tuple[int, ...]],
    limits: ModelLimits,
    folder: DataFolder | None,
    in_place: Mapping[str, str],
    integers: bool,
    recurrences: RecurrenceLimits,
) -> OnnxModel:
    """The model with fixed input shapes in operators that TVM imports; raises as `load` does."""
    fixed = bound(model, shapes, limits, folder)
    mark_shared(fixed.proto.graph, _pairs(fixed.proto.graph, in_place).values())

    def write(one: OnnxModel, decide: Decide | None) -> OnnxModel:
        return written_out(one, limits, integers, recurrences, decide)

    return with_bounds(fixed, write) if decides(fixed.proto) else write(fixed, None)


def written_out(
    fixed: OnnxModel,
    limits: ModelLimits,
    integers: bool = True,
    recurrences: RecurrenceLimits = NO_RECURRENCES,
    decide: Decide | None = None,
) -> OnnxModel:
    """A bound model, which is changed, in operators that TVM imports; `integers` and
    `recurrences` are `load`'s, and `decide` that of `rewrite`. Raises ModelError."""
    changed = rewrite(fixed.proto, limits, fixed.weights, integers, recurrences, decide)
    written = expand(fixed.proto, _known(), limits)
    if written is not fixed.proto:
        rewrite(written, limits, fixed.weights, integers, recurrences, decide)
    if changed or written is not fixed.proto:
        check_sizes(written, limits)
    check_operators(written, _imported())
    name_nodes(written.graph)
    return fixed.with_proto(written)


def imported(
    written: OnnxModel,
    limits: ModelLimits,
    narrow: str | None = None,
    in_place: Mapping[str, str] = NOTHING,
    integers: bool = True,
) -> Loaded:
    """The Relax module of a model in operators that TVM imports; the other arguments are
    `load`'s. Raises ModelError."""
    real, held = without_integer_weights(written) if integers else (written, {})
    constant = fold(real)
    del written, real  # and their weights, where nobody else has them: `constant` has others
    branched = combine_branches(constant.with_proto(einsums(constant.proto)))
    combined = combine_siblings(branched)
    folded = combined.proto
    check_sizes(folded, limits)  # more shapes are known now
    _check_empty(folded)
    name_nodes(folded.graph)
    module, names = _import(combined)
    module = with_integer_weights(_simplify(module), held)
    inputs = tuple(p for p in input_ports(folded) if p.name not in held)
    outputs = _output_ports(folded, module)
    pairs = _pairs(folded.graph, in_place)
    module = updated_in_place(module, pairs, [p.name for p in inputs], [p.name for p in outputs])
    if narrow is None:
        return Loaded(module, inputs, outputs, names, None, integers, pairs)
    made, narrowing = to_tf32(module) if narrow == TF32 else narrowed(module, narrow)
    return Loaded(made, inputs, outputs, names, narrowing, integers, pairs)


def _pairs(graph: onnx.GraphProto, in_place: Mapping[str, str]) -> dict[str, str]:
    return paired(in_place, [i.name for i in graph.input], [o.name for o in graph.output])


def bound(
    model: ModelBytes,
    shapes: Mapping[str, tuple[int, ...]],
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
) -> OnnxModel:
    """The checked ONNX model with fixed input shapes; raises as `load` does."""
    checked = checked_model(model, limits, folder)
    bind(checked.proto, shapes, limits)
    check_sizes(checked.proto, limits)
    return checked


def checked_model(model: ModelBytes, limits: ModelLimits, folder: DataFolder | None) -> OnnxModel:
    """The checked ONNX model as it was given; raises as `load` does."""
    return read(model, _known(), limits, folder)


def input_ports(proto: onnx.ModelProto) -> tuple[ModelPort, ...]:
    """The inputs of a model, in order; their shapes are fixed."""
    return tuple(_input_port(i) for i in proto.graph.input)


def _imported() -> frozenset[str]:
    """The operators that TVM imports, or that are converted here; it looks at no domain."""
    return frozenset(onnx_frontend._get_convert_map()) | _DIRECT | CONVERTERS.keys()


def _known() -> frozenset[str]:
    """The operators that TVM imports, and those that are replaced before."""
    return _imported() | _REPLACED


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer; it keeps the node that it converts, and names values after nodes."""

    node: onnx.NodeProto | None = None
    weights: Mapping[str, OnnxArray] = MappingProxyType({})

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing: `check_operators` knows what is converted here, too."""

    def _parse_array(self, tensor: TensorProto) -> tvm.runtime.Tensor:
        if is_declared(tensor):
            return tensor_over(self.weights[tensor.name])
        return super()._parse_array(tensor)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        value = self._converted(op_name, inputs, attrs)
        if value is None:
            value = super()._convert_operator(op_name, inputs, attrs, opset)
        if self.node is None or self.node.op_type != op_name or not isinstance(value, relax.Call):
            return value
        if op_name == "Split" and isinstance(parts := _sliced(value), relax.Tuple):
            named = zip(self.node.output, parts.fields, strict=True)
            return relax.Tuple([self.bb.emit(p, _identifier(n, "value")) for n, p in named])
        return self.bb.emit(value, _identifier(self.node.name, "node"))

    def _new_var(self, var_name: str, shape: Any, dtype: str = "float32") -> relax.Var:
        """An input of the module. Its name becomes that of a kernel's parameter."""
        wanted = made = _identifier(var_name, "input")
        taken = {v.name for v in self._nodes.values() if isinstance(v, relax.Var)}
        count = 0
        while made in taken:
            count += 1
            made = f"{wanted}_{count}"
        return super()._new_var(made, shape, dtype)

    def _converted(self, op_name: str, inputs: Any, attrs: Any) -> relax.Expr | None:
        """The value of a node that is converted here (graph.convert), None of any other."""
        convert = CONVERTERS.get(op_name)
        made = None if convert is None else convert(self.bb, list(inputs), attrs)
        return None if made is None else self.bb.normalize(made)

    def _parse_value_proto(self, value_proto: Any) -> Any:
        self.node = value_proto if isinstance(value_proto, onnx.NodeProto) else None
        return super()._parse_value_proto(value_proto)


def _identifier(name: str, kind: str) -> str:
    """A name as C has them, made from one of the model's; one that begins with no letter is put
    after `kind`."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return plain if plain[:1].isalpha() else f"{kind}_{plain}"


def _import(folded: OnnxModel) -> tuple[tvm.IRModule, dict[str, str]]:
    """The module, and the names of its values by those of the model's."""
    importer = _Importer(shape_dict={}, dtype_dict="float32")
    importer.weights = folded.weights
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            module = importer.from_onnx(folded.proto.graph, opset(folded.proto))
        except Exception as error:  # a converter may raise anything
            at = importer.node
            if at is not None:
                importer.bb._end_block()  # or TVM says on stderr that it was left open
            what = f"operator '{at.op_type}' (node '{at.name}')" if at else "the model"
            why = _undecided(at, folded.proto.graph) if at else ""
            raise ModelError(f"{what} cannot be imported: {why or sentence(error)}") from error
    variables = {str(n): v for n, v in importer._nodes.items() if isinstance(v, relax.Var)}
    renamed = _new_names(module["main"].params, variables)
    module["main"] = with_variables(module["main"], renamed)
    return module, {n: renamed.get(v, v).name for n, v in variables.items()}


_NUMBERED = re.compile(r"[lg]v\d*")
"""How TVM's passes call the values that they make: several passes give the same name."""


def _new_names(
    params: Sequence[relax.Var], variables: Mapping[str, relax.Var]
) -> dict[relax.Var, relax.Var]:
    """Other variables for the values with a name that a pass of TVM's may give once more: they are
    named after the ONNX model's values, whose `variables` these are."""
    taken = {v.name for v in (*params, *variables.values())}
    made: dict[relax.Var, relax.Var] = {}
    for name, v in variables.items():
        if v in made or v in params or not _NUMBERED.fullmatch(v.name):
            continue
        wanted = own = _identifier(name, "value")
        count = 0
        while own in taken or _NUMBERED.fullmatch(own):
            count += 1
            own = f"{wanted}_{count}"
        taken.add(own)
        made[v] = type(v)(own, v.ty)
    return made


def _undecided(node: onnx.NodeProto, graph: onnx.GraphProto) -> str:
    """What to do about an If that an input decides; empty for other nodes."""
    if node.op_type != "If" or node.input[0] not in {i.name for i in graph.input}:
        return ""
    name = node.input[0]
    return (
        f"input '{name}' chooses a branch as the model runs; make it a constant with "
        f"mcfuser freeze MODEL {name}=true -o FROZEN, or {name}=false"
    )


def _clipped(call: relax.Call) -> relax.Expr:
    """A take in which an index outside of the table reads its first or last row, not other
    memory."""
    if call.attrs.mode != "fast":
        return call
    return relax.op.take(*call.args, axis=call.attrs.axis, mode="clip")


def _sliced(call: relax.Call) -> relax.Expr:
    """The parts of a split as slices, which TVM computes together with what reads them; TVM has no
    tuple of one part."""
    if not isinstance(call.ty, relax.TupleType):
        return call.args[0]
    whole = extents(call.args[0])
    if whole is None:
        return call
    axis, end, parts = int(call.attrs.axis) % len(whole), 0, []
    for part in call.ty.fields:
        begin, end = end, end + int(part.shape[axis])
        parts.append(relax.op.strided_slice(call.args[0], [axis], [begin], [end]))
    return relax.Tuple(parts)


def _simplify(module: tvm.IRModule) -> tvm.IRModule:
    module["main"] = calls_rewritten(module["main"], {"relax.take"}, _clipped)
    module["main"] = calls_rewritten(module["main"], {"relax.split"}, _sliced)
    module = precomputed(module)
    live = relax.transform.DeadCodeElimination(["main"])
    with refused("TVM cannot simplify the model"):
        module = relax.transform.CanonicalizeBindings()(with_constants(module))
        module = live(common_values(module))
    module = live(rewrite_idioms(module))
    main = module["main"]
    whole = joined_whole(main)
    if whole is main:
        return module
    module["main"] = whole
    return live(common_values(module))


def _input_port(value: onnx.ValueInfoProto) -> ModelPort:
    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if tensor.elem_type == TensorProto.BFLOAT16:
        dtype = "bfloat16"
    return ModelPort(value.name, tuple(d.dim_value for d in tensor.shape.dim), dtype)


def _check_empty(folded: onnx.ModelProto) -> None:
    """Raises ModelError where an operator computes with an input without elements. A cache before
    the first step is one: it may be joined with something, which no node reads any more."""
    empty = {p.name for p in input_ports(folded) if 0 in p.shape}
    for node in inside(folded.graph, onnx.NodeProto) if empty else ():
        for name in empty.intersection(node.input):
            raise ModelError(
                f"input '{name}' has a dimension of extent 0, and operator '{node.op_type}' (node "
                f"'{node.name}') computes with it; give it a larger shape with --shape"
            )


def _output_ports(folded: onnx.ModelProto, module: tvm.IRModule) -> tuple[ModelPort, ...]:
    kind = module["main"].body.body.ty  # the function's own has no extents that elements decide
    fields = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
    constants = {t.name for t in folded.graph.initializer}
    ports = []
    for value, part in zip(folded.graph.output, fields, strict=True):
        if not isinstance(part, relax.TensorType) or part.ndim < 0:
            raise ModelError(f"output '{value.name}' is no tensor of known rank")
        dims = part.shape if part.shape is not None else [None] * part.ndim
        shape = tuple(int(d) if isinstance(d, (int, tvm.tirx.IntImm)) else -1 for d in dims)
        if 0 in shape and value.name not in constants:
            raise ModelError(f"output '{value.name}' has a dimension of extent 0")
        ports.append(ModelPort(value.name, shape, str(part.dtype)))
    return tuple(ports)
