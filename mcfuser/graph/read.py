"""ONNX bytes -> a checked model whose inputs have fixed shapes. Only onnx is needed here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx
import onnx.inliner
import onnx.shape_inference
from google.protobuf.message import DecodeError
from onnx import TensorProto

from mcfuser.errors import ModelError

DTYPES = frozenset({
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    TensorProto.BOOL,
})  # fmt: skip
DOMAINS = ("", "ai.onnx", "com.microsoft")
_IR_VERSION_TAG = b"\x08"  # the first byte of every ONNX file: field 1, a varint


def read(model: bytes, known: Collection[str]) -> onnx.ModelProto:
    """The model that the bytes hold, every node named, its functions inlined.

    `known` are the operators that can be imported. Raises ModelError, naming the thing at fault,
    where the bytes are no ONNX model, the model is not valid, keeps data in other files or uses
    an operator that is neither known nor defined by a function body.
    """
    proto = _parse(model)
    for tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            places = {entry.key: entry.value for entry in tensor.external_data}
            raise ModelError(
                f"tensor '{tensor.name}' is kept in the external file "
                f"'{places.get('location', '?')}'; save the model as one file, with its data inside"
            )
    name_nodes(proto.graph)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    _drop_overridable(proto.graph)
    for node in _nodes(proto.graph):
        _check_operator(node, _opset(proto), known)
    _check_valid(proto)
    return proto


def bind(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Writes the shapes into the model's inputs, and forgets what was said of other values.

    A dimension that is named in several inputs need be given once. Raises ModelError, naming the
    input and the dimension, where one stays open or cannot be what is asked.
    """
    inputs = {i.name: i for i in proto.graph.input}
    for name in shapes:
        if name not in inputs:
            raise ModelError(f"--shape names input '{name}'; the model has {', '.join(inputs)}")
    extents: dict[str, int] = {}
    for value in inputs.values():
        _check_type(value)
        if value.name in shapes:
            _bind_given(value, shapes[value.name], extents)
    for value in inputs.values():
        _bind_named(value, extents)
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")


def expand(proto: onnx.ModelProto, known: Collection[str]) -> onnx.ModelProto:
    """The model with every operator that is not known written out by its function body.

    The shapes must be bound: some bodies depend on them. Raises ModelError naming an operator of
    a body that is not known either.
    """
    foreign = [
        ("", node.op_type)
        for node in _nodes(proto.graph)
        if node.op_type not in known and _standard(node.domain)
    ]
    if not foreign:
        return proto
    expanded = onnx.inliner.inline_selected_functions(
        onnx.shape_inference.infer_shapes(proto, data_prop=True),
        list(dict.fromkeys(foreign)),
        inline_schema_functions=True,
    )
    name_nodes(expanded.graph)
    for node in _nodes(expanded.graph):
        if node.op_type not in known:
            raise _unknown(node)
    del expanded.graph.value_info[:]
    return expanded


def sentence(error: BaseException) -> str:
    """The first line of an error's text, without the full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _parse(model: bytes) -> onnx.ModelProto:
    if not model:
        raise ModelError("the model is empty (0 bytes); give an ONNX file")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except DecodeError:
        if model.startswith(_IR_VERSION_TAG):
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
    return proto


def _check_valid(proto: onnx.ModelProto) -> None:
    """Asks onnx's checker, which wants a shape even where the rank is not known."""
    values = [v.type.tensor_type for v in (*proto.graph.input, *proto.graph.output)]
    open_rank = [t for t in values if t.elem_type and not t.HasField("shape")]
    for tensor in open_rank:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"the model is not valid ONNX: {sentence(error)}") from None
    for tensor in open_rank:
        tensor.ClearField("shape")


def _tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from proto.graph.initializer
    bodies = [node for function in proto.functions for node in function.node]
    for node in [*_nodes(proto.graph), *bodies]:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of branches too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Gives every node without a name that of its first output."""
    for node in _nodes(graph):
        node.name = node.name or next(iter(node.output), node.op_type)


def _drop_overridable(graph: onnx.GraphProto) -> None:
    """Old models list weights among their inputs; here they are constants."""
    weights = {w.name for w in graph.initializer}
    kept = [i for i in graph.input if i.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)


def _standard(domain: str) -> bool:
    return domain in ("", "ai.onnx")


def _opset(proto: onnx.ModelProto) -> int:
    return next((o.version for o in proto.opset_import if _standard(o.domain)), 1)


def _check_operator(node: onnx.NodeProto, opset: int, known: Collection[str]) -> None:
    if node.domain not in DOMAINS:
        raise ModelError(
            f"operator '{node.op_type}' (node '{node.name}') is of domain '{node.domain}', which "
            f"is not known; export the model with standard ONNX operators"
        )
    if node.op_type in known:
        return
    if not _standard(node.domain) or not onnx.defs.has(node.op_type, opset):
        raise _unknown(node)
    schema = onnx.defs.get_schema(node.op_type, opset)
    if not (schema.has_function or schema.has_context_dependent_function):
        raise _unknown(node)


def _unknown(node: onnx.NodeProto) -> ModelError:
    return ModelError(
        f"operator '{node.op_type}' (node '{node.name}') is not known to TVM's ONNX importer; "
        "export the model without it"
    )


def _check_type(value: onnx.ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ModelError(f"input '{value.name}' is a {kind or 'value of no type'}, not a tensor")
    dtype = value.type.tensor_type.elem_type
    if dtype not in DTYPES:
        found = TensorProto.DataType.Name(dtype).lower()
        raise ModelError(
            f"input '{value.name}' has element type {found}, which is not supported; "
            "use a float, integer or bool type"
        )


def _dimension(d: onnx.TensorShapeProto.Dimension, position: int) -> str:
    return f"'{d.dim_param}'" if d.dim_param else str(position)


def _bind_given(
    value: onnx.ValueInfoProto, shape: tuple[int, ...], extents: dict[str, int]
) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        for _ in shape:
            tensor.shape.dim.add()
    if len(tensor.shape.dim) != len(shape):
        raise ModelError(
            f"--shape gives input '{value.name}' {len(shape)} dimensions; "
            f"it has {len(tensor.shape.dim)}"
        )
    for position, (d, extent) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        fixed = d.dim_value if d.HasField("dim_value") else extents.get(d.dim_param, extent)
        if fixed != extent:
            raise ModelError(
                f"--shape gives dimension {_dimension(d, position)} of input '{value.name}' "
                f"extent {extent}; the model and the other shapes fix it at {fixed}"
            )
        if d.dim_param:
            extents[d.dim_param] = extent
        d.dim_value = extent


def _bind_named(value: onnx.ValueInfoProto, extents: Mapping[str, int]) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(
            f"input '{value.name}' has no shape; give it: --shape {value.name}=1x128, for example"
        )
    for position, d in enumerate(tensor.shape.dim):
        if d.dim_param in extents:
            d.dim_value = extents[d.dim_param]
        if not d.HasField("dim_value"):
            example = "x".join(str(x.dim_value or 128) for x in tensor.shape.dim)
            raise ModelError(
                f"dimension {_dimension(d, position)} of input '{value.name}' is dynamic; "
                f"fix it with --shape {value.name}={example}, for example"
            )
        if d.dim_value < 1:
            raise ModelError(
                f"dimension {position} of input '{value.name}' has extent {d.dim_value}; "
                "every extent must be at least 1"
            )
