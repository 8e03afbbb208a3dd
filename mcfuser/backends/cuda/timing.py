"""How long launches take on a GPU, and the state that it was in meanwhile."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cuda.bindings import nvml
from cuda.core import EventOptions

from mcfuser.backends.cuda.driver import DriverLaunch, Gpu
from mcfuser.measure.rounds import RoundLimits, time_interleaved

GRAPH = 4e-4
"""Seconds that one graph of launches should last: what a replay costs besides is 1 % of it."""
LAUNCHES = 64
"""Runs of a program in a graph at most."""
REPLAYS = 9
FEWEST = 3
ENOUGH = 0.01
"""Seconds of replays after which a long program needs no more than FEWEST of them."""
WARM = 0.03
"""Seconds of launches after a pause: clocks rise within milliseconds."""
IDLE = 0.3
"""Seconds without work after which clocks may have fallen."""

SM_CLOCK, MEMORY_CLOCK = 1, 2
"""NVML numbers; their names differ between versions of the bindings."""
REASONS = {4: "power cap", 8: "hardware slowdown", 32: "temperature", 64: "temperature",
           128: "power brake"}  # fmt: skip


LaunchTurns = Sequence[Sequence[DriverLaunch]]
"""A program as launches on several copies of its constants, which its runs take in turns."""


def timed(gpu: Gpu, programs: Sequence[LaunchTurns], bounds: RoundLimits) -> list[list[float]]:
    """Seconds of each program, some replays of each, taken in turns until the choice is settled.

    A replay runs a captured graph of many launches, so that the host is not in the figure. One
    program alone is replayed less often where it takes milliseconds.
    """
    once = [_once(gpu, turns) for turns in programs]
    counts = [min(LAUNCHES, math.ceil(GRAPH / t)) for t in once]
    if len(programs) == 1:
        few = max(FEWEST, min(bounds.least, int(ENOUGH / (once[0] * counts[0]))))
        bounds = replace(bounds, least=few, most=few)
    graphs = [_captured(gpu, p, n) for p, n in zip(programs, counts, strict=True)]
    _warm(gpu, graphs)
    runs = [partial(_replay, gpu, g, n) for g, n in zip(graphs, counts, strict=True)]
    times = time_interleaved(runs, bounds, time.monotonic)
    gpu.used = time.monotonic()
    return times


def _replay(gpu: Gpu, graph: Any, count: int) -> float:
    """Seconds of a program, of which a graph holds so many runs."""
    return _between(gpu, partial(graph.launch, gpu.stream)) / count


def _once(gpu: Gpu, turns: LaunchTurns) -> float:
    """Seconds of a program, roughly: of a short one the median of three trials."""

    def some(count: int) -> None:
        for i in range(count):
            for one in turns[i % len(turns)]:
                one.on(gpu.stream)

    first = min(_between(gpu, partial(some, 1)) for _ in range(2))  # clocks may have fallen
    if first > GRAPH:
        return first
    return statistics.median(_between(gpu, partial(some, 3)) for _ in range(3)) / 3


def _captured(gpu: Gpu, turns: LaunchTurns, count: int) -> Any:
    builder = gpu.stream.create_graph_builder()
    builder.begin_building()
    for i in range(count):
        for one in turns[i % len(turns)]:
            one.on(builder)
    graph = builder.end_building().complete()
    graph.upload(gpu.stream)
    return graph


def _warm(gpu: Gpu, graphs: Sequence[Any]) -> None:
    end = time.monotonic() + (WARM if time.monotonic() - gpu.used > IDLE else 0.0)
    while True:
        for graph in graphs:
            graph.launch(gpu.stream)
        gpu.stream.sync()
        if time.monotonic() >= end:
            return


def _between(gpu: Gpu, work: Callable[[], None]) -> float:
    options = EventOptions(timing_enabled=True)
    before = gpu.stream.record(options=options)
    work()
    after = gpu.stream.record(options=options)
    after.sync()
    return float(after - before) / 1e3


# --- the state it is in ---------------------------------------------------------------------


def conditions(gpu: Gpu) -> dict[str, Any]:
    """Clocks (MHz), what holds them down, and how many other processes use the GPU; what the
    driver does not tell is left out."""
    found: dict[str, Any] = {"gpu": gpu.name, **gpu.versions}
    with contextlib.suppress(nvml.NvmlError, RuntimeError):  # its library may be missing
        nvml.init_v2()
        one = nvml.device_get_handle_by_uuid(gpu.uuid)
        found["driver"] = str(nvml.system_get_driver_version())
        found["sm_mhz"] = int(nvml.device_get_clock_info(one, SM_CLOCK))
        found["memory_mhz"] = int(nvml.device_get_clock_info(one, MEMORY_CLOCK))
        mask = int(nvml.device_get_current_clocks_event_reasons(one))
        found["throttled"] = sorted({why for bit, why in REASONS.items() if mask & bit})
        users = len(nvml.device_get_compute_running_processes_v3(one))
        found["others"] = max(0, users - 1)  # one of them is this process
    return found
