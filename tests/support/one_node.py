"""Models of one node, run by onnxruntime before and after their rewriting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from mcfuser.graph.check import answer, reference_session
from mcfuser.graph.rewrite.apply import rewrite
from mcfuser.graph.rewrite.table import REWRITES
from mcfuser.graph.session import session
from mcfuser.graph.weights import OnnxModel

Arrays = Mapping[str, np.ndarray]


def one_node(
    kind: str, inputs: Sequence[str], outputs: int, given: Arrays, constants: Arrays | None = None,
    domain: str = "", opset: int = 17, dtypes: Sequence[type] = (), **attributes: object,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node; `given` are its inputs, `constants` its weights. The results are y0, y1
    and so on, of the first input's type or of `dtypes`."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, inputs, names, name="the_node", domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    kinds = [np.dtype(d) for d in dtypes] or [next(iter(given.values())).dtype] * outputs
    results = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(d), None)
        for n, d in zip(names, kinds, strict=True)
    ]
    graph = helper.make_graph(
        [node], "one", values, results,
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: onnx.ModelProto, given: Arrays) -> list[np.ndarray]:
    """The results that onnxruntime computes node by node."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(session(OnnxModel(model), options).run(None, dict(given)))


def expected(model: onnx.ModelProto, given: Arrays) -> list[np.ndarray]:
    """The results that onnxruntime computes with exact sums of integers, on every CPU."""
    return answer(reference_session(OnnxModel(model)), given)


def replaced(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model, rewritten: no node of it that has a rewrite is left as it was, but for
    casts and identities, few of which are replaced."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    assert rewrite(made)
    keys = REWRITES.keys() - {("", "Cast"), ("", "Identity")}
    gone = [n for n in model.graph.node if (n.domain, n.op_type) in keys]
    assert gone and not any(n in made.graph.node for n in gone)
    return made


def agree(
    model: onnx.ModelProto, given: Arrays, tolerance: float = 1e-5,
    results: Sequence[np.ndarray] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Asserts that the rewritten model computes what the model does; gives the rewritten one.

    `results` are the model's where onnxruntime does not have the operator.
    """
    made = replaced(model)
    found = run(made, given)
    for a, b in zip(found, results or expected(model, given), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = np.float64 if a.dtype.kind == "f" else a.dtype
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance)
    return made
