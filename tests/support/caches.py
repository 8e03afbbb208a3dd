"""Models that return a cache in which some positions are new, in the ways in which exporters write
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCH, HEADS, COLUMNS, DEPTH = 2, 3, 8, 4
CACHE = (BATCH, HEADS, COLUMNS, DEPTH)

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class CacheModel:
    """Nodes that compute `present` from `past` and other inputs, and constants."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Arrays
    constants: Arrays = field(default_factory=dict)
    cache: tuple[int, ...] = CACHE
    opset: int = 17

    def proto(
        self, more: Sequence[onnx.NodeProto] = (), results: Sequence[str] = ()
    ) -> onnx.ModelProto:
        """The model, which also returns the products of the cache with itself, as `scores`."""
        rank = len(self.cache)
        turned = [*range(rank - 2), rank - 1, rank - 2]
        nodes = [
            *self.nodes,
            helper.make_node("Transpose", ["present"], ["turned"], perm=turned),
            helper.make_node("MatMul", ["present", "turned"], ["scores"]),
            *more,
        ]
        given = {"past": self.past(), **self.inputs}
        kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
        graph = helper.make_graph(
            nodes, "cache",
            [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in given.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
             for n in ("scores", "present", *results)],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def past(self, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(self.cache).astype(np.float32)


def _new(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _ints(*numbers: object) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _node(
    kind: str, inputs: Sequence[str], output: str = "present", **more: object
) -> onnx.NodeProto:
    domain = "com.microsoft" if kind == "GroupQueryAttention" else ""
    return helper.make_node(kind, inputs, output.split(), domain=domain, **more)


_ROW = _new(BATCH, HEADS, 1, DEPTH)
_ROWS = _new(BATCH, HEADS, 2, DEPTH)
_POSITIONS = np.stack(
    np.meshgrid(_ints(0, 1), _ints(0, 1, 2), _ints(5, -1), indexing="ij"), axis=-1
).reshape(BATCH, HEADS, 2, 3)

MODELS = {
    "where, new where true": CacheModel(
        [_node("Equal", ["columns", "at"], "within"), _node("Where", ["within", "new", "past"])],
        {"new": _ROW, "at": _ints(3)}, {"columns": np.arange(COLUMNS).reshape(1, 1, COLUMNS, 1)},
    ),
    "where, new where false": CacheModel(
        [_node("Less", ["columns", "at"], "without"), _node("Where", ["without", "past", "new"])],
        {"new": _ROW, "at": _ints(6)}, {"columns": np.arange(COLUMNS).reshape(COLUMNS, 1)},
    ),
    "where, one condition": CacheModel(
        [_node("Where", ["all", "new", "past"])], {"new": _ROW, "all": np.array(True)},
    ),
    "scattered slices": CacheModel(
        [_node("ScatterND", ["past", "at", "new"])],
        {"new": _ROWS, "at": _POSITIONS},
    ),
    "scattered, turned": CacheModel(
        [
            _node("Transpose", ["past"], "first", perm=[2, 0, 1, 3]),
            _node("ScatterND", ["first", "at", "new"], "second"),
            _node("Transpose", ["second"], "present", perm=[1, 2, 0, 3]),
        ],
        {"new": _new(1, BATCH, HEADS, DEPTH), "at": _ints([6])},
    ),
    "scattered, reshaped": CacheModel(
        [
            _node("Reshape", ["past", "flat"], "first"),
            _node("ScatterND", ["first", "at", "new"], "second"),
            _node("Reshape", ["second", "whole"], "present"),
        ],
        {"new": _new(2, COLUMNS * DEPTH), "at": _ints([4], [1])},
        {"flat": _ints(BATCH * HEADS, COLUMNS * DEPTH), "whole": _ints(*CACHE)},
    ),
    "scattered elements": CacheModel(
        [_node("ScatterElements", ["past", "at", "new"], axis=2)],
        {"new": _ROWS, "at": np.stack([np.full((BATCH, HEADS, DEPTH), n) for n in (-2, 0)], 2)},
    ),
    "rows of a cache": CacheModel(
        [_node("TensorScatter", ["past", "new", "at"])],
        {"new": _ROWS, "at": _ints(1, 5)}, opset=24,
    ),
    "rows of a ring": CacheModel(
        [_node("TensorScatter", ["past", "new", "at"], mode="circular")],
        {"new": _new(BATCH, 3, DEPTH), "at": _ints(1, 6)}, cache=(BATCH, COLUMNS, DEPTH), opset=24,
    ),
}  # fmt: skip
"""By what they do. The cache is the input `past` and the output `present`."""


def grouped(last: Sequence[int]) -> CacheModel:
    """Grouped attention of one query, whose cache has room for all positions."""
    width = HEADS * 8
    names = ["q", "k", "v", "past", "values", "last", "total"]
    made = _node(
        "GroupQueryAttention", names, "y present present_values", num_heads=HEADS,
        kv_num_heads=HEADS,
    )  # fmt: skip
    given = {n: _new(BATCH, 1, width) for n in "qkv"}
    given |= {"values": _new(BATCH, HEADS, COLUMNS, 8), "last": np.asarray(last, np.int32)}
    total = {"total": np.array(COLUMNS, np.int32)}
    return CacheModel([made], given, total, (BATCH, HEADS, COLUMNS, 8))
