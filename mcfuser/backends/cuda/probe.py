"""A GPU's constants, measured in seconds: an empty kernel, copies, iterations, products, functions.

Each reading is the time of a small generated kernel over its work. The fitted model's constants
belong to one GPU; a reading over that GPU's says how much slower another one is at that
(model.fitted.costs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcfuser.backend import Building
from mcfuser.chain import BYTES, Chain, from_json
from mcfuser.device import Device
from mcfuser.errors import DeviceError
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.measure.worker import Worker
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.prune import space
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal

LAUNCH = "launch"
"""The reading of an empty kernel, which the others are less of."""
ROW = 2048
"""Elements in a row of what is copied."""
DEEP = 16
"""Functions in a row in the kernel that times them."""
ITERATIONS = 1024
SHAPES = ((64, 64), (128, 128), (128, 256))
"""Tiles of the products whose rate is read."""


@dataclass(frozen=True)
class Trial:
    """A kernel whose time gives a reading: its seconds are divided by `work`, and multiplied by
    `units`, the number of multiprocessors that do this work at the same time."""

    name: str
    chain: Chain
    expression: str
    tiles: Mapping[str, int]
    lowering: TritonKnobs
    work: float
    units: int = 1

    @property
    def schedule(self) -> Schedule:
        plan = Plan(space(self.chain).program, parse(self.expression), frozenset())
        return plan.schedule(self.tiles)


@dataclass(frozen=True)
class Probe:
    """Readings by name, and the state of the GPU meanwhile."""

    readings: Mapping[str, float]
    conditions: Mapping[str, Any]


def probe(device: Device, worker: Worker) -> Probe:
    """Readings of the GPU at hand: seconds of an empty kernel (`launch`) and of an iteration of a
    loop that waits for memory (`turn`); seconds a byte of memory (`memory`); and of one
    multiprocessor, seconds a byte of the last cache (`cache`), a flop of products by tile shape
    (`product 128x128` ..; `warp`: those that warps compute alone), a function (`function`).

    A tile shape that does not fit the GPU has no reading. Raises DeviceError where there is no such
    GPU, or where another trial fails.
    """
    if (why := worker.refused()) is not None:
        raise DeviceError(f"{device.name} cannot be probed: {why}")
    every = trials(device)
    begun = [worker.builder.begin(t.chain, t.schedule, "probe", t.lowering) for t in every]
    seconds: dict[str, float] = {}
    conditions: dict[str, Any] = {}
    for trial, building in zip(every, begun, strict=True):
        result = _timed(trial, building, device, worker)
        if result is not None:
            seconds[trial.name] = result[0]
            conditions.update(result[1])
    return Probe(_readings(every, seconds), conditions)


def _timed(
    trial: Trial, building: Building, device: Device, worker: Worker
) -> tuple[float, Mapping[str, Any]] | None:
    try:
        kernel = building.kernel()
    except Illegal as illegal:
        raise DeviceError(
            f"the probe's kernel '{trial.name}' does not compile: {illegal}"
        ) from None
    if kernel.resources["shared"] > device.fast:
        return None
    result = worker.measure(trial.chain, [[kernel]], 0)[0]
    if result.seconds is None:
        raise DeviceError(f"the probe's kernel '{trial.name}' failed: {result.failed}")
    return result.seconds, result.conditions


def _readings(every: list[Trial], seconds: Mapping[str, float]) -> dict[str, float]:
    readings = {LAUNCH: seconds[LAUNCH]}
    for trial in every:
        if trial.name in seconds and trial.name != LAUNCH:
            alone = max(seconds[trial.name] - seconds[LAUNCH], 0.1 * seconds[trial.name])
            readings[trial.name] = alone / trial.work * trial.units
    return readings


def trials(device: Device) -> list[Trial]:
    """What is timed on a device; copies are of a size that its cache holds, or does not."""
    held = 1 << int(math.log2(max(device.cache, 1 << 22) / 4))
    every = [
        Trial(LAUNCH, _map({"m": 16}, "X[m] * 2.0"), "m.", {"m": 16}, TritonKnobs(1, 1), 1.0),
        _copy("cache", held, device.units),
        _copy("memory", max(8 * held, 1 << 27), 1),
        Trial(
            "turn", _product(16, 16, 16 * ITERATIONS), "mn.k", {"m": 16, "n": 16, "k": 16},
            TritonKnobs(1, 1), float(ITERATIONS),
        ),
        _rate("warp", (32, 64), device),
        Trial(
            "function", _map({"m": 1 << 22}, _nested(DEEP)), "m.", {"m": 1024},
            TritonKnobs(4, 1), DEEP * 2.0**22, device.units,
        ),
    ]  # fmt: skip
    return every + [_rate(f"product {m}x{n}", (m, n), device) for m, n in SHAPES]


def _copy(name: str, nbytes: int, units: int) -> Trial:
    """Reads so many bytes and writes as many."""
    rows = nbytes // (ROW * BYTES["float32"])
    chain = _map({"m": rows, "n": ROW}, "X[m, n] * 2.0")
    return Trial(name, chain, "mn.", {"m": 2, "n": ROW}, TritonKnobs(8, 1), 2.0 * nbytes, units)


def _rate(name: str, tile: tuple[int, int], device: Device) -> Trial:
    """A product with as many tiles as fill the device some times."""
    m, n, k = 2048, 4096, 1024
    tiles = {"m": tile[0], "n": tile[1], "k": 64}
    lowering = TritonKnobs(8 if tile[0] * tile[1] > 64 * 128 else 4, 3)
    work = 2.0 * m * n * k
    return Trial(name, _product(m, n, k), "mn.k", tiles, lowering, work, device.units)


def _nested(depth: int) -> str:
    words = "X[m]"
    for _ in range(depth):
        words = f"exp(0.0 - {words})"
    return words


def _map(axes: Mapping[str, int], body: str) -> Chain:
    shape = ", ".join(axes)
    return from_json({
        "name": "probe", "axes": dict(axes),
        "tensors": {t: {"shape": list(axes), "dtype": "float32"} for t in "XY"},
        "operators": [f"Y[{shape}] = {body}"],
    })  # fmt: skip


def _product(m: int, n: int, k: int) -> Chain:
    shapes = {"X": ["m", "k"], "W": ["k", "n"], "Y": ["m", "n"]}
    return from_json({
        "name": "probe", "axes": {"m": m, "n": n, "k": k},
        "tensors": {t: {"shape": s, "dtype": "float16"} for t, s in shapes.items()},
        "operators": ["Y[m, n] = sum[k] X[m, k] * W[k, n]"],
    })  # fmt: skip
