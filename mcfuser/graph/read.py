"""Reads and checks an ONNX model and expands its functions; only onnx is imported."""

from __future__ import annotations

import re
from collections.abc import Collection

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from mcfuser.errors import ModelError
from mcfuser.graph.bind import open_dimensions
from mcfuser.graph.calls import check_calls
from mcfuser.graph.constants import check_constants
from mcfuser.graph.embedded import APART, TakenData, embedded, lightened
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.messages import inside
from mcfuser.graph.opset import raised
from mcfuser.graph.refusal import refused
from mcfuser.graph.sizes import inferred_shapes, outline
from mcfuser.graph.weights import OnnxModel, gathered
from mcfuser.graph.wire import ModelBytes, scan

DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
_UNCHECKED = "com.microsoft"
ONNXRUNTIMES = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that onnxruntime has in ONNX's domain, in versions in which ONNX lacks them."""
_INITIALIZERS_ALONE = 4
"""The first version of ONNX's files in which an initializer need not be an input as well."""
_IR_VERSION_TAG = b"\x08"  # the first byte of every ONNX file: field 1, a varint
_TERM = r"[A-Za-z\s]*(\.{3}[A-Za-z\s]*)?"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


def read(
    model: ModelBytes,
    known: Collection[str],
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
) -> OnnxModel:
    """The model that the bytes hold, with every node named, its functions expanded, old operators
    written as newer ones.

    `known` are the operators that can be used, as `operator_name` names them; external data are
    read from `folder`. Raises ModelError, naming what is wrong, where the bytes are no ONNX model,
    or the model is not valid, exceeds the limits, keeps data in files outside of the folder, or
    uses an operator that is neither known nor defined by a function body.
    """
    return normalized(parse(model, limits, folder), known, limits)


def light(model: ModelBytes, limits: ModelLimits) -> tuple[onnx.ModelProto, list[TakenData]]:
    """The message that the bytes hold, and the data of large weights that were taken out of it, if
    there are many (embedded.lightened); raises as `read` does."""
    if not model:
        raise ModelError("the model is empty (0 bytes); give an ONNX file")
    proto = onnx.ModelProto()
    try:
        if not scan(model, limits):
            raise DecodeError
        message, taken = lightened(model) if len(model) >= APART else (model, [])
        proto.ParseFromString(message)
    except DecodeError:
        if model[:1] == _IR_VERSION_TAG:
            raise ModelError(
                f"the ONNX model is truncated or damaged: it cannot be read to the end of its "
                f"{len(model)} bytes; export or download it again"
            ) from None
        raise ModelError(
            f"the model is not ONNX: it begins with {model[:8]!r}; give an ONNX file"
        ) from None
    if not proto.ir_version or not proto.HasField("graph"):
        raise ModelError("the model is not ONNX: it holds no graph; give an ONNX file")
    if not proto.opset_import or not proto.graph.output:
        lacks = "operator set" if not proto.opset_import else "output"
        raise ModelError(f"the ONNX model names no {lacks}: it is truncated; export it again")
    return proto, taken


def parse(model: ModelBytes, limits: ModelLimits, folder: DataFolder | None = None) -> OnnxModel:
    """The model that the bytes hold, with all its data at hand; raises as `read` does."""
    proto, taken = light(model, limits)
    _name_domains(proto)
    weights = embedded(proto, model, taken)
    check_constants(proto, limits)
    proto.DiscardUnknownFields()  # a reader of newer models might find data in them
    if folder is not None:
        proto.ClearField("training_info")
    found = gathered(proto, folder, limits, weights)
    proto.ClearField("training_info")
    return found


def _name_domains(proto: onnx.ModelProto) -> None:
    """Writes ONNX's own domain as "" everywhere; a file may also call it "ai.onnx"."""
    for kind in (onnx.NodeProto, onnx.FunctionProto, onnx.OperatorSetIdProto):
        for part in inside(proto, kind):
            if part.domain == "ai.onnx":
                part.domain = ""


def normalized(model: OnnxModel, known: Collection[str], limits: ModelLimits) -> OnnxModel:
    """A parsed model, checked, with its functions expanded, in operators of opset.OLDEST or newer;
    raises as `read` does."""
    proto = model.proto
    _check_opsets(proto)
    check_calls(proto, limits)
    open_dimensions(proto)
    name_nodes(proto.graph)
    if proto.functions:
        with refused("the functions of the model cannot be written out"):
            proto = onnx.inliner.inline_local_functions(proto)
        name_nodes(proto.graph)
        check_constants(proto, limits)
    _drop_overridable(proto)
    version = opset(proto)
    for node in inside(proto.graph, onnx.NodeProto):
        _check_operator(node, version, known)
        _check_equation(node, version)
    _check_valid(proto)
    proto = raised(proto)
    name_nodes(proto.graph)
    _write_defaults(proto, [("", "STFT")])
    return model.with_proto(proto)


def expand(
    proto: onnx.ModelProto, known: Collection[str], limits: ModelLimits = DEFAULTS
) -> onnx.ModelProto:
    """The model with every operator of ONNX's that is not in `known` (as `operator_name` names
    them) replaced by its function body.

    Input shapes must be fixed: some bodies depend on them. Raises ModelError, naming the operator,
    where one in a body is not known either.
    """
    expanded = proto
    for _ in range(limits.nesting):
        foreign = {
            ("", node.op_type): None
            for node in inside(expanded.graph, onnx.NodeProto)
            if node.op_type not in known and not node.domain
        }
        if not foreign:
            break
        expanded = _written_out(expanded, list(foreign))
    if expanded is proto:
        return proto
    name_nodes(expanded.graph)
    nodes = 0
    for nodes, node in enumerate(inside(expanded.graph, onnx.NodeProto), 1):  # noqa: B007
        if operator_name(node.domain, node.op_type) not in known:
            raise _unknown(node, opset(proto))
    limits.check("nodes", nodes, "the model has {} nodes with ONNX's functions written out")
    check_constants(expanded, limits)
    del expanded.graph.value_info[:]
    return expanded


def name_nodes(graph: onnx.GraphProto) -> None:
    """Names every node without a name after its first output."""
    for node in inside(graph, onnx.NodeProto):
        if not node.name:
            node.name = next(iter(node.output), node.op_type)


def _written_out(proto: onnx.ModelProto, foreign: list[tuple[str, str]]) -> onnx.ModelProto:
    """The model with these operators replaced by their function bodies."""
    typed = inferred_shapes(proto)
    for weight in proto.graph.initializer:  # some bodies depend on their types
        typed.graph.value_info.add(name=weight.name).type.CopyFrom(
            onnx.helper.make_tensor_type_proto(weight.data_type, weight.dims)
        )
    _write_defaults(typed, foreign)
    with refused("the functions of ONNX that the model uses cannot be written out"):
        made = onnx.inliner.inline_selected_functions(typed, foreign, inline_schema_functions=True)
    del made.graph.value_info[:]
    return made


def _write_defaults(proto: onnx.ModelProto, foreign: list[tuple[str, str]]) -> None:
    """Gives the nodes of these operators the attributes that they leave out: onnx's inliner takes
    none from the operator's definition, to which a function's body refers, and where an STFT says
    not of how many sides it is, onnx infers the shape of two, though its default is one."""
    for node in inside(proto.graph, onnx.NodeProto):
        if (node.domain, node.op_type) in foreign:
            present = {a.name for a in node.attribute}
            declared = onnx.defs.get_schema(node.op_type, opset(proto)).attributes
            defaults = {n: d.default_value for n, d in declared.items() if n not in present}
            node.attribute.extend(d for d in defaults.values() if d.type)


def check_operators(proto: onnx.ModelProto, known: Collection[str]) -> None:
    """Raises ModelError, naming the operator, where one is not in `known`, as `operator_name` names
    them."""
    for node in inside(proto.graph, onnx.NodeProto):
        if operator_name(node.domain, node.op_type) not in known:
            raise _unknown(node, opset(proto))


def operator_name(domain: str, operator: str) -> str:
    """An operator's name, after its domain and a colon where that is not ONNX's own."""
    return f"{domain}:{operator}" if domain else operator


def described(node: onnx.NodeProto, version: int) -> str:
    """A node for messages: its operator, domain, version of ONNX's operators, and name."""
    domain = node.domain or "ai.onnx"
    return f"operator '{node.op_type}' of domain '{domain}', opset {version} (node '{node.name}')"


def opset(proto: onnx.ModelProto) -> int:
    """The version of ONNX's operator set that the model uses."""
    return next((o.version for o in proto.opset_import if not o.domain), 1)


def _check_opsets(proto: onnx.ModelProto) -> None:
    """Raises ModelError where an operator set's version is not known to the installed onnx."""
    newest = onnx.defs.onnx_opset_version()
    for used in (*proto.opset_import, *(o for f in proto.functions for o in f.opset_import)):
        if not (1 <= used.version <= newest if not used.domain else 0 <= used.version < 999):
            raise ModelError(
                f"the model uses version {used.version} of the operators of domain "
                f"'{used.domain or 'ai.onnx'}'; export it with opset {newest} or lower"
            )


def _check_valid(proto: onnx.ModelProto) -> None:
    """Raises ModelError where onnx's checker refuses the model."""
    light = outline(proto)
    for value in (*light.graph.input, *light.graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type and not tensor.HasField("shape"):  # the checker wants one
            tensor.shape.SetInParent()
    version = opset(proto)
    for node in inside(light.graph, onnx.NodeProto):
        if node.op_type in ONNXRUNTIMES and not onnx.defs.has(node.op_type, version):
            node.domain = _UNCHECKED
    if all(o.domain != _UNCHECKED for o in light.opset_import):
        light.opset_import.add(domain=_UNCHECKED, version=1)
    with refused("the model is not valid ONNX"):
        onnx.checker.check_model(light)


def _drop_overridable(proto: onnx.ModelProto) -> None:
    """Removes inputs that are initializers, as old models list them: they are constants here."""
    graph = proto.graph
    weights = {w.name for w in graph.initializer}
    proto.ir_version = max(proto.ir_version, _INITIALIZERS_ALONE)
    kept = [i for i in graph.input if i.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)


_OTHERS = "nothing is known of that domain; export the model with standard ONNX operators"
_EXTENSIONS = (
    "it is one of onnxruntime-extensions, which read texts, pictures and sounds; give the model "
    "without what is before and behind the network"
)
_DOMAINS = {
    "com.microsoft.nchwc": (
        "onnxruntime has saved the model as it runs on one kind of CPU (ORT_ENABLE_ALL); save it "
        "with ORT_ENABLE_EXTENDED, or give the model that it was made of"
    ),
    "ai.onnx.contrib": _EXTENSIONS,
    "com.microsoft.extensions": _EXTENSIONS,
    "org.pytorch.aten": (
        "torch has found no operator of ONNX's for it; export the model with a newer torch, or "
        "without ONNX_FALLTHROUGH"
    ),
}
"""What to do about operators of some domains."""


def _check_operator(node: onnx.NodeProto, version: int, known: Collection[str]) -> None:
    if node.domain not in DOMAINS:
        why = _DOMAINS.get(node.domain, _OTHERS)
        raise ModelError(f"{described(node, version)} is not known: {why}")
    if operator_name(node.domain, node.op_type) in known:
        return
    if node.domain or not onnx.defs.has(node.op_type, version):
        raise _unknown(node, version)
    schema = onnx.defs.get_schema(node.op_type, version)
    if not (schema.has_function or schema.has_context_dependent_function):
        raise _unknown(node, version)


def _check_equation(node: onnx.NodeProto, version: int) -> None:
    """Raises ModelError where an einsum's equation is none: onnx's shape inference goes on for ever
    where it meets a dot that is not one of three."""
    if node.op_type != "Einsum" or node.domain:
        return
    for text in (a.s.decode(errors="replace") for a in node.attribute if a.name == "equation"):
        if _EQUATION.fullmatch(text) is None:
            raise ModelError(
                f"{described(node, version)} has the equation '{text[:60]}'; write letters for "
                "each operand, commas between operands, at most one '...' in each, and '->' before "
                "the result"
            )


def _unknown(node: onnx.NodeProto, version: int) -> ModelError:
    return ModelError(
        f"{described(node, version)} is not known to TVM's ONNX importer; "
        "export the model without it"
    )
