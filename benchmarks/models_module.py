"""mcfuser's module as a contender of `benchmarks/models.py`, and where its time goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from numpy.typing import NDArray
from tvm.runtime.vm import VirtualMachine

from mcfuser.runtime.runner import Captured, arrays, gpu, ready
from models_contenders import Contender
from models_spent import TUNED_ON_GPU, TUNED_ON_HOST, divided, one_by_one

RUNS = 10
"""Runs over which the seconds of a module's functions are averaged."""


def on_host(path: Path, inputs: Sequence[NDArray[np.generic]], threads: int) -> Contender:
    """A module for a CPU, on `threads` cores."""
    run = ready(path, inputs, threads)
    return Contender(lambda: arrays(run()), run, spent=partial(_spent_on_host, path, inputs))


def on_gpu(path: Path, inputs: Sequence[NDArray[np.generic]]) -> Contender:
    """A module for a GPU, captured into a CUDA graph."""
    device = gpu()
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), device)
    tensors = [tvm.runtime.tensor(np.asarray(x, order="C"), device) for x in inputs]
    graph = Captured(machine, device, tensors)
    stream = torch.cuda.ExternalStream(graph.stream)
    return Contender(
        lambda: arrays(graph.replay()), graph.launch, stream, spent=partial(_spent_on_gpu, graph)
    )


def _spent_on_host(path: Path, inputs: Sequence[NDArray[np.generic]]) -> dict[str, Any]:
    """Of each function that the machine calls, timed one by one."""
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    tensors = [tvm.runtime.tensor(np.asarray(x, order="C")) for x in inputs]
    seconds, calls, begun = dict[str, float](), Counter[str](), [0.0]

    def tell(_: object, name: str, before: bool, *rest: object) -> None:
        now = time.perf_counter()
        if before:
            begun[0] = now
            return
        seconds[name] = seconds.get(name, 0.0) + now - begun[0]
        calls[name] += 1

    machine["main"](*tensors)
    machine.set_instrument(tell)
    for _ in range(RUNS):
        machine["main"](*tensors)
    machine.set_instrument(None)
    return divided(seconds, calls, RUNS, TUNED_ON_HOST)


def _spent_on_gpu(graph: Captured) -> dict[str, Any]:
    """Of each kernel of the graph, by torch's profiler. Raises RuntimeError where it sees none."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    graph.replay()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(RUNS):
            graph.replay()
        torch.cuda.synchronize()
    on_device = [e for e in seen.events() or () if e.device_type == DeviceType.CUDA]
    ran = [(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in on_device]
    if not ran:
        raise RuntimeError("the profiler saw no kernel of the graph")
    calls = Counter(name for name, _, _ in ran)
    return divided(one_by_one(ran), calls, RUNS, TUNED_ON_GPU)
