"""Compiles a small model for the CPU (mcfuser.process.confined), as `mcfuser compile` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mcfuser.bisect import verify
from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import bound
from mcfuser.tune.tuned import MemoryCache, TuneOptions

SIZE = 32
"""The extents of the model's product."""


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """What compiled the model: `arch` and `units` of the CPU, `tvm`, `llvm`, the `seconds` that it
    took, and the `error` against onnxruntime, None where `skipped` says why nothing was
    compared."""
    import tvm

    begun, model = time.monotonic(), small_model().SerializeToString()
    device = device_named(HOST)
    made = compile_model(model, device, MemoryCache(), TuneOptions(trials=1, timeout=10.0), {})
    library = Path("module.so").absolute()
    library.write_bytes(made.module)
    checked = verify(made, library, bound(model, {}, DEFAULTS, None), 0, None)
    return {
        "arch": device.arch,
        "units": device.units,
        "tvm": tvm.__version__,
        "llvm": str(tvm.get_global_func("target.llvm_version_major")()),
        "times": made.report["times"],
        "seconds": time.monotonic() - begun,
        "error": checked.get("error"),
        "skipped": checked.get("skipped"),
    }


def small_model() -> onnx.ModelProto:
    """A product with a constant matrix, and the positive part of its result."""
    weight = np.eye(SIZE, dtype=np.float32) / 2
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in ("x", "y")
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(
        nodes, "doctor", ports[:1], ports[1:], [numpy_helper.from_array(weight, "w")]
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)
