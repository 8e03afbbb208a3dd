"""The values inside a model, as onnxruntime computes them and as a module returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
import onnxruntime
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from mcfuser.errors import InputError
from mcfuser.graph.condition import MASKED
from mcfuser.graph.draw import Feeds
from mcfuser.graph.refusal import ort_reason
from mcfuser.graph.session import session
from mcfuser.graph.weights import OnnxModel

Values = dict[str, NDArray[np.generic]]
Zeroed = Mapping[str, np.dtype[np.generic]]
"""Softmaxes by the names of their results, with their element types."""


def computed_by_onnxruntime(
    model: OnnxModel, feeds: Feeds, names: Sequence[str], zeroed: Zeroed = MappingProxyType({})
) -> Values:
    """Values of a model by name, each of its nodes computed as it is written, without optimization.

    The softmaxes that are `zeroed` give zeros for rows that are masked throughout. Raises
    InputError where onnxruntime refuses the model or does not run on these inputs.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    _zero_masked_rows(proto.graph, zeroed)
    had = {o.name for o in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in had)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        results = session(model.with_proto(proto), options).run(list(names), feeds)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise InputError(
            f"onnxruntime does not compute the model's values: {ort_reason(error)}"
        ) from None
    return dict(zip(names, map(np.asarray, results), strict=True))


def masked_rows(node: onnx.NodeProto, scores: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which rows of a softmax's operand are masked throughout: no element is above MASKED."""
    return np.asarray(scores.astype(np.float64).max(axis=_axis(node)) <= MASKED)


def _axis(node: onnx.NodeProto) -> int:
    """The dimension of a softmax."""
    return next((a.i for a in node.attribute if a.name == "axis"), -1)


def _zero_masked_rows(graph: onnx.GraphProto, zeroed: Zeroed) -> None:
    """Makes softmaxes give zeros for rows whose maximum is masked."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "Softmax" and node.output[0] in zeroed:
            nodes += _guard(graph, node, zeroed[node.output[0]])
    del graph.node[:]
    graph.node.extend(nodes)


def _guard(
    graph: onnx.GraphProto, node: onnx.NodeProto, dtype: np.dtype[np.generic]
) -> list[onnx.NodeProto]:
    """The nodes after a softmax that choose between its result and zero."""
    out, axis = node.output[0], _axis(node)
    node.output[0] = f"{out}_unguarded"
    names = [f"{out}_{part}" for part in ("wide", "highest", "one", "limit", "shown", "zero")]
    wide, highest, one, limit, shown, zero = names
    constants = {one: np.array([1], np.int64), limit: np.array(MASKED, np.float32)}
    constants[zero] = np.zeros((), dtype)
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return [  # TopK, as the operands of ReduceMax differ between operator sets
        helper.make_node("Cast", [node.input[0]], [wide], to=TensorProto.FLOAT),
        helper.make_node("TopK", [wide, one], [highest, f"{highest}_at"], axis=axis),
        helper.make_node("Greater", [highest, limit], [shown]),
        helper.make_node("Where", [shown, node.output[0], zero], [out]),
    ]


def returning(module: tvm.IRModule, values: Sequence[relax.Var]) -> tvm.IRModule:
    """The module whose `main` also returns these values, after its own results."""
    main = module["main"]
    own, wanted = main.body.body, set(values)
    results: dict[relax.Var, relax.Var] = {}
    blocks = []
    for block in main.body.blocks:
        more = []
        for v in (b.var for b in block.bindings if b.var in wanted):
            results[v] = relax.Var(f"{v.name}_result", v.ty)
            more.append(relax.VarBinding(results[v], v))
        if block.same_as(main.body.blocks[-1]) and isinstance(own.ty, relax.TupleType):
            parts = [relax.Var(f"own_{i}", ty) for i, ty in enumerate(own.ty.fields)]
            more += [relax.VarBinding(p, relax.TupleGetItem(own, i)) for i, p in enumerate(parts)]
        blocks.append(type(block)([*block.bindings, *more]))
    first = parts if isinstance(own.ty, relax.TupleType) else [own]
    every = [*first, *(results[v] for v in values)]
    body = relax.SeqExpr(blocks, relax.Tuple(every))
    kind = relax.TupleType([v.ty for v in every])
    changed = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    function = relax.Function(main.params, body, kind, main.is_pure, main.attrs)
    changed.update_func(changed.get_global_var("main"), function)
    return relax.transform.Normalize()(changed)


def by_onnx_name(names: Mapping[str, str], order: Sequence[relax.Var]) -> dict[str, relax.Var]:
    """The values of a module by their names in the ONNX model, in the module's order; `names` are
    those of the module's values, by the others. A name that several values have says nothing."""
    count = Counter(v.name for v in order)
    known = {v.name: v for v in order if count[v.name] == 1}
    found = {onnx_name: known[name] for onnx_name, name in names.items() if name in known}
    at = {v: i for i, v in enumerate(order)}
    return dict(sorted(found.items(), key=lambda item: at[item[1]]))
