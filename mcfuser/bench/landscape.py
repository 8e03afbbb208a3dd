"""Landscapes: many candidates of one chain, measured, in a file that models are judged by."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mcfuser.candidates import Candidate, Candidates
from mcfuser.chain import Chain, from_text
from mcfuser.codegen import triton
from mcfuser.codegen.cubin import Binary
from mcfuser.codegen.pool import Compilers
from mcfuser.device import Device, device_named
from mcfuser.lowerings import LOWERINGS, every, predict
from mcfuser.measure_gpu import GpuKernel, GpuWorker
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.prune import Space, distinct, parted, prune, space
from mcfuser.space.statement import Illegal

BEST = 2
"""The model's best are drawn from so many times as many as are measured in all."""


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate and what became of it; resources are None where it did not compile, `seconds`
    where it did not run right."""

    expression: str
    tiles: tuple[int, ...]
    warps: int
    stages: int
    combine: str = "kernel"
    split: str | None = None
    parts: int = 1
    shared: int | None = None
    registers: int | None = None
    spills: int | None = None
    seconds: float | None = None
    error: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Landscape:
    """Points of one chain on one device, and how they were measured."""

    name: str
    words: str
    dtype: str
    device: Device
    conditions: dict[str, Any]
    points: tuple[Point, ...]

    @property
    def chain(self) -> Chain:
        return from_text(self.words, self.dtype)


def whole(chain: Chain, device: Device) -> Candidates:
    """All candidates of a chain for a GPU, under every lowering worth a look."""
    pruned, _ = prune(space(chain), device)
    return every(parted(distinct(pruned), device), device)


def compiled(
    found: Candidates, chosen: Sequence[Candidate], device: Device, compilers: Compilers,
    take: Callable[[Candidate, triton.Source | None, Binary | Illegal], None],
) -> None:  # fmt: skip
    """Compiles candidates; `take` is told of each as it comes."""
    sources: list[triton.Source] = []
    known: list[Candidate] = []
    for candidate in chosen:
        plan, tiles = found.plan(candidate)
        try:
            made = triton.generate(plan.schedule(tiles), "kernel", LOWERINGS[candidate[-1]])
        except Illegal as illegal:
            take(candidate, None, illegal)
            continue
        sources.append(made)
        known.append(candidate)
    for i, binary in compilers.compile(sources, device.arch):
        take(known[i], sources[i], binary)


def measure(
    name: str, words: str, device: Device, chosen: Sequence[Candidate], found: Candidates,
    compilers: Compilers, worker: GpuWorker, seed: int,
) -> Landscape:  # fmt: skip
    """Compiles and measures candidates of a chain in float16."""
    chain = from_text(words, "float16")
    points: list[Point] = []
    conditions: dict[str, Any] = {}

    def take(candidate: Candidate, source: triton.Source | None, made: Binary | Illegal) -> None:
        plan, tiles = found.plan(candidate)
        lowering = LOWERINGS[candidate[-1]]
        head = (
            str(plan.expression), tuple(tiles.values()), lowering.warps, lowering.stages,
            lowering.combine, plan.split, plan.parts,
        )  # fmt: skip
        if isinstance(made, Illegal) or source is None:
            points.append(Point(*head, failed=str(made)))
            return
        used = (made.shared, made.registers, made.spills)
        if made.shared > device.fast:
            points.append(Point(*head, *used, failed="more shared memory than a block may have"))
            return
        result = worker.measure(chain, [[GpuKernel(chain, source, made)]], seed)[0]
        conditions.update(result.conditions)
        points.append(Point(*head, *used, result.seconds, result.error, result.failed))

    compiled(found, chosen, device, compilers, take)
    return Landscape(name, words, "float16", device, conditions, tuple(points))


def drawn(found: Candidates, device: Device, count: int, seed: int) -> list[Candidate]:
    """So many candidates, two thirds of them at random, the others from the fitted model's best:
    random ones alone hardly meet the region that a search is about."""
    rng = np.random.default_rng(seed)
    order = np.argsort(found.each(found.rows, partial(predict, device)), kind="stable")
    best = rng.permutation(order[: BEST * count])[: count // 3]
    others = np.setdiff1d(rng.permutation(len(found))[:count], best, assume_unique=True)
    return [found.candidate(i) for i in (*best, *others)][:count]


def write(path: Path, landscape: Landscape) -> None:
    """A JSON file with a line for each point."""
    head = {
        "name": landscape.name,
        "chain": landscape.words,
        "dtype": landscape.dtype,
        "device": landscape.device.name,
        "conditions": landscape.conditions,
        "columns": list(Point.__dataclass_fields__),
    }
    rows = [json.dumps(list(asdict(p).values())) for p in landscape.points]
    text = (
        json.dumps(head, indent=1)[:-2] + ',\n "points": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"
    )
    path.write_text(text)


def read(path: Path) -> Landscape:
    """What `write` wrote; columns that are new since are empty."""
    document = json.loads(path.read_text())
    points = []
    for row in document["points"]:
        fields = dict(zip(document["columns"], row, strict=True))
        points.append(Point(**{**fields, "tiles": tuple(fields["tiles"])}))
    return Landscape(
        document["name"], document["chain"], document["dtype"], device_named(document["device"]),
        document["conditions"], tuple(points),
    )  # fmt: skip


def plan_of(known: Space, point: Point) -> Plan:
    """The plan that a point stands for, in the space of its chain."""
    dead = known.dead(dict(zip(known.axes, point.tiles, strict=True)))
    return Plan(known.program, parse(point.expression), dead, point.split, point.parts)
