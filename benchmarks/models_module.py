"""mcfuser's module as a contender of `benchmarks/models.py`, and where its time goes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
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

RUNS = 10
"""Runs over which the seconds of a module's functions are averaged."""
TUNED_ON_HOST = re.compile("chain_")
TUNED_ON_GPU = re.compile("kernel_[0-9a-f]{16}")
"""What the names of tuned functions and kernels begin with (mcfuser.compile, mcfuser.tune)."""
MOST = 12
"""Functions of each sort that are kept by name, those that take longest."""


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
    from torch.profiler import ProfilerActivity, profile

    graph.replay()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(RUNS):
            graph.replay()
        torch.cuda.synchronize()
    seconds, calls = dict[str, float](), Counter[str]()
    for event in seen.key_averages():
        if event.self_device_time_total > 0:
            spent = event.self_device_time_total / 1e6
            seconds[event.key] = seconds.get(event.key, 0.0) + spent
            calls[event.key] += event.count
    if not seconds:
        raise RuntimeError("the profiler saw no kernel of the graph")
    return divided(seconds, calls, RUNS, TUNED_ON_GPU)


def divided(
    seconds: Mapping[str, float], calls: Mapping[str, int], runs: int, tuned: re.Pattern[str]
) -> dict[str, Any]:
    """Seconds and calls of one run inside of tuned chains and outside, and the longest of each."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for name in sorted(seconds, key=lambda n: -seconds[n]):
        parts[tuned.match(name) is not None].append(name)
    whole = sum(seconds.values())
    inside, outside = (
        {
            "seconds": sum(seconds[n] for n in parts[own]) / runs,
            "calls": sum(calls[n] for n in parts[own]) // runs,
            "longest": [
                {"name": n[:120], "seconds": seconds[n] / runs, "calls": calls[n] // runs}
                for n in parts[own][:MOST]
            ],
        }
        for own in (True, False)
    )
    share = sum(seconds[n] for n in parts[False]) / whole if whole else 0.0
    return {"outside_share": round(share, 4), "chains": inside, "outside": outside}
