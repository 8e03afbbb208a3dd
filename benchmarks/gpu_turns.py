"""Times mcfuser's kernels and their peers in turns, in one process and on one stream.

Reads one request as JSON from its standard input, answers a line a workload. Every contender
is captured into a CUDA graph of many launches; a round replays each once, the order turning from
round to round.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from cuda.core import Stream

from gpu_peers import DTYPES, inputs, peers, reference
from gpu_workloads import Workload, workloads
from mcfuser.backend import Kernel
from mcfuser.backends.cuda import driver as gpus
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.backends.cuda.driver import DriverLaunch, Gpu
from mcfuser.backends.cuda.runner import read
from mcfuser.backends.cuda.timing import conditions
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.lease import lease
from mcfuser.measure.worker import tolerance
from mcfuser.tune.cover import pieces
from mcfuser.tune.tuned import Tuned
from mcfuser.tune.tuner import kernel_of

Tensor = torch.Tensor
ROUNDS = 51
GRAPH = 1e-3
"""Seconds that a graph should last; what a replay costs besides is less than 1 % of it."""
MOST = 200
"""Launches in a graph."""
WARM = 20
"""Replays of each graph before the first round."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints must not stand between answers
    request = json.load(sys.stdin)
    torch.cuda.init()
    gpu = gpus.find(device_named(request["device"]))
    known = workloads(request["suite"])
    with torch.no_grad():
        for one in request["workloads"]:
            w = known[one["name"]]
            x, wanted = inputs(w, request["seed"]), request["peers"]
            others = {n: run for n, run in peers(w, x).items() if not wanted or n in wanted}
            answer = {"name": w.name, **measured(gpu, w, x, _kernels(w, one), others)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            torch._dynamo.reset()


def _kernels(w: Workload, one: Mapping[str, Any]) -> dict[str, list[Kernel]]:
    """The covers that mcfuser chose from: a kernel for each piece of a cut."""
    found = {}
    for name, cover in one["covers"].items():
        tuned = [Tuned.from_json(t) for t in cover["kernels"]]
        pairs = zip(tuned, pieces(w.chain, tuple(cover["cut"])), strict=True)
        found[name] = [kernel_of(CUDA, t, piece) for t, piece in pairs]
    return found


def measured(
    gpu: Gpu, w: Workload, x: Mapping[str, Tensor], kernels: Mapping[str, list[Kernel]],
    others: Mapping[str, Callable[[], Tensor]],
) -> dict[str, Any]:  # fmt: skip
    """Microseconds of every contender, round by round, its error, and why others are missing."""
    side = torch.cuda.Stream()
    stream = Stream.from_handle(side.cuda_stream)
    runs = {n: bound(gpu, k, w, x, stream) for n, k in kernels.items()} | dict(others)
    wanted, limit = reference(w, x), tolerance(w.chain)
    side.wait_stream(torch.cuda.current_stream())
    errors, missing, graphs = {}, {}, {}
    with torch.cuda.stream(side):
        for name, run in runs.items():
            try:
                errors[name] = _error(run(), wanted)
                if not errors[name] <= limit:
                    raise ValueError(f"its error is {errors[name]:.1e}")
                graphs[name] = _captured(run, side)
            except Exception as reason:  # a peer may lack the operator, and says so in many ways
                lines = str(reason).strip().splitlines() or [type(reason).__name__]
                missing[name] = lines[0][:200]
                errors.pop(name, None)
        with lease(f"gpu-{gpu.uuid}", exclusive=True):
            times = _turns(graphs)
            state = conditions(gpu)
        for name in graphs.keys() & kernels.keys():  # right after thousands of launches, too
            if not (error := _error(runs[name](), wanted)) <= limit:
                missing[name] = f"its error after many launches is {error:.1e}"
                del times[name]
    return {"times": times, "errors": errors, "missing": missing, "conditions": state}


def _error(found: Tensor, wanted: Tensor) -> float:
    """Norm-wise relative error."""
    difference = found.double().view(wanted.shape) - wanted
    return float(difference.norm() / wanted.norm())


def bound(
    gpu: Gpu, kernels: list[Kernel], w: Workload, x: Mapping[str, Tensor], stream: Stream
) -> Callable[[], Tensor]:
    """mcfuser's kernels on torch's tensors; what they should write holds NaN."""
    tensors, launches = dict(x), list[DriverLaunch]()
    for k in kernels:
        sizes = {a.name: k.chain.size(a.name) for a in k.chain.axes}
        for n in k.chain.outputs:
            dtype = DTYPES[k.chain.tensor(n).dtype]
            tensors[n] = torch.full(k.chain.shape(n), float("nan"), dtype=dtype, device="cuda")
        source = read(k)
        beside = {s.name: _workspace(s.size, s.dtype, s.zero) for s in source.workspace}
        binary = gpus.load(k.binary)
        for one in source.launches:
            given = [beside[n] if n in beside else tensors[n] for n in one.arguments]
            arguments = [np.uint64(t.data_ptr()) for t in given]
            for m in one.maps:
                address = tensors[m.tensor].data_ptr() + m.start
                arguments += gpus.tensor_map(
                    address, m.dtype, m.shape, m.strides, m.part, m.swizzle
                )
            extents = [np.int32(sizes[a]) for a in one.extents]
            launches.append(gpus.prepare(gpu, binary, one.name, one.blocks(sizes),
                                         source.threads, k.resources["shared"],
                                         [*arguments, *extents]))  # fmt: skip
        tensors |= {f"{source.name}/{n}": t for n, t in beside.items()}
    torch.cuda.synchronize()

    def run() -> Tensor:
        for one in launches:
            one.on(stream)
        return tensors[w.chain.outputs[0]]

    return run


def _workspace(size: int, dtype: str, zero: bool) -> Tensor:
    kind = DTYPES.get(dtype) or getattr(torch, dtype)
    return (torch.zeros if zero else torch.empty)(size, dtype=kind, device="cuda")


# --- turns ----------------------------------------------------------------------------------

Graph = tuple[torch.cuda.CUDAGraph, int]


def _captured(run: Callable[[], Tensor], side: torch.cuda.Stream) -> Graph:
    """A graph of many launches, and how many."""
    once = min(_between(lambda: [run() for _ in range(5)]) for _ in range(3)) / 5
    few = _graph(run, 5, side)
    once = min(once, min(_between(few.replay) for _ in range(3)) / 5)
    number = max(1, min(MOST, int(GRAPH / once)))
    return _graph(run, number, side), number


def _graph(run: Callable[[], Tensor], number: int, side: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(number):
            run()
    return graph


def _turns(graphs: Mapping[str, Graph]) -> dict[str, list[float]]:
    """Microseconds a call in each round."""
    for graph, _ in graphs.values():
        for _ in range(WARM):
            graph.replay()
    names = list(graphs)
    times: dict[str, list[float]] = {n: [] for n in names}
    for i in range(ROUNDS):
        at = i % len(names)
        for n in names[at:] + names[:at]:
            graph, number = graphs[n]
            times[n].append(round(1e6 * _between(graph.replay) / number, 4))
    return times


def _between(work: Callable[[], object]) -> float:
    """Seconds on the GPU."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


if __name__ == "__main__":
    main()
