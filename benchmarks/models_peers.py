"""The peers of `benchmarks/models.py`: torch, torch.compile, onnxruntime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models_contenders import Contender, as_arrays

Make = Callable[[], Contender]
UNCAPTURED = "max-autotune-no-cudagraphs"
"""torch.compile's mode where the graph is captured here."""
WARM = 3
"""Calls before a capture: what they compile and allocate must not be captured."""


def peers(
    on_host: bool, model: bytes, module: nn.Module, inputs: Mapping[str, Tensor], threads: int
) -> dict[str, Make]:
    """What makes each peer of a device, by its name; it raises where the peer cannot run."""
    if not on_host:
        given = [x.cuda() for x in inputs.values()]
        return {
            "torch": lambda: _eager_on_gpu(module.cuda(), given),
            "torch.compile": lambda: _compiled(module.cuda(), given),
        }
    feeds = {n: x.numpy() for n, x in inputs.items()}
    return {
        "onnxruntime": partial(_onnxruntime, model, feeds, threads),
        "OpenVINO": partial(_openvino, model, feeds, threads),
        "torch": partial(_eager, module, list(inputs.values()), threads),
    }


PEERS = {True: ("onnxruntime", "OpenVINO", "torch"), False: ("torch", "torch.compile")}
"""The names of the peers, for a CPU and for a GPU."""


def reference(
    module: nn.Module, inputs: Mapping[str, Tensor], on_host: bool
) -> list[NDArray[np.generic]]:
    """The outputs of a float32 module on float32 inputs, computed by torch on the device.

    TensorFloat32 is off, also for what is timed later.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    where = torch.device("cpu" if on_host else "cuda")
    wide = [x.to(where, torch.float32) if x.is_floating_point() else x.to(where)
            for x in inputs.values()]  # fmt: skip
    return as_arrays(module.to(where)(*wide))


# --- a CPU's --------------------------------------------------------------------------------


def _eager(module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Contender:
    torch.set_num_threads(threads)
    return Contender(lambda: as_arrays(module(*inputs)), lambda: module(*inputs))


def _onnxruntime(model: bytes, feeds: Mapping[str, NDArray[np.generic]], threads: int) -> Contender:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    run = partial(session.run, None, dict(feeds))
    return Contender(run, run)


def _openvino(model: bytes, feeds: Mapping[str, NDArray[np.generic]], threads: int) -> Contender:
    import openvino

    core = openvino.Core()
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads,
             "PERFORMANCE_HINT": "LATENCY"}  # fmt: skip
    request = core.compile_model(core.read_model(model), "CPU", hints).create_infer_request()
    run = partial(request.infer, list(feeds.values()), share_inputs=True)
    return Contender(lambda: [np.array(x) for x in run().values()], run)


# --- a GPU's --------------------------------------------------------------------------------


def _eager_on_gpu(module: nn.Module, inputs: Sequence[Tensor]) -> Contender:
    stream = torch.cuda.current_stream()
    return Contender(lambda: as_arrays(module(*inputs)), lambda: module(*inputs), stream)


def _compiled(module: nn.Module, inputs: Sequence[Tensor]) -> Contender:
    """torch.compile's kernels in one CUDA graph; in its own graphs where that fails."""
    try:
        return _graphed(torch.compile(module, mode=UNCAPTURED, dynamic=False), inputs)
    except Exception as reason:  # a capture fails in many ways; the note says in which
        first = (str(reason).strip().splitlines() or [type(reason).__name__])[0][:160]
    torch.cuda.synchronize()
    torch._dynamo.reset()
    again = torch.compile(module, mode="max-autotune", dynamic=False)
    for _ in range(WARM):
        again(*inputs)
    stream = torch.cuda.current_stream()
    note = f"max-autotune with graphs of its own, as a capture failed: {first}"
    return Contender(lambda: as_arrays(again(*inputs)), lambda: again(*inputs), stream, note)


def _graphed(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Contender:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = run(*inputs)

    def outputs() -> list[NDArray[np.generic]]:
        graph.replay()
        torch.cuda.synchronize()
        return as_arrays(result)

    return Contender(outputs, graph.replay, side)
