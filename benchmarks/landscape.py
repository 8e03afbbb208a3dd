"""Landscapes: many candidates of one chain, measured, in a file that models are judged by."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mcfuser.arguments.files import read_json
from mcfuser.backends.cuda.worker import GpuKernel, GpuWorker
from mcfuser.backends.lowerings import ALIKE, LOWERINGS, every, predict
from mcfuser.chain import Chain, from_json, to_json
from mcfuser.codegen import triton
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.space.candidates import Candidate, Candidates
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.prune import Space, distinct, parted, prune, space
from mcfuser.space.statement import Illegal

BEST = 2
"""The model's best are drawn from so many times as many as are measured in all."""
NEAR = 3.0
"""Candidates within this factor of the model's first are near it."""
_NUMBERS = {lowering: number for number, lowering in enumerate(LOWERINGS)}


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate and what became of it; resources are None where it did not compile, `seconds`
    where it did not run right."""

    expression: str
    tiles: tuple[int, ...]
    warps: int
    stages: int
    combine: Literal["kernel", "last"] = "kernel"
    split: str | None = None
    parts: int = 1
    shared: int | None = None
    registers: int | None = None
    spills: int | None = None
    seconds: float | None = None
    error: float | None = None
    failed: str | None = None
    tma: bool = False
    groups: bool = False

    @property
    def lowering(self) -> int:
        """By its number."""
        made = triton.Lowering(self.warps, self.stages, self.combine, self.tma, self.groups)
        return _NUMBERS[made]


@dataclass(frozen=True)
class Landscape:
    """Points of one chain on one device, and how they were measured."""

    name: str
    chain: Chain
    device: Device
    conditions: dict[str, Any]
    points: tuple[Point, ...]


def whole(chain: Chain, device: Device, groups: bool = False) -> Candidates:
    """All candidates of a chain for a GPU, under every lowering worth a look: those whose warps all
    do the same, or those with groups that have work of their own."""
    pruned, _ = prune(space(chain), device)
    found = every(parted(distinct(pruned), device), device, groups)
    return replace(found, rows=found.rows[found.rows[:, -1] >= ALIKE]) if groups else found


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
    name: str, chain: Chain, device: Device, chosen: Sequence[Candidate], found: Candidates,
    compilers: Compilers, worker: GpuWorker, seed: int,
) -> Landscape:  # fmt: skip
    """Compiles and measures candidates of a chain."""
    points: list[Point] = []
    conditions: dict[str, Any] = {}

    def take(candidate: Candidate, source: triton.Source | None, made: Binary | Illegal) -> None:
        plan, tiles = found.plan(candidate)
        lowering = LOWERINGS[candidate[-1]]
        point = Point(
            str(plan.expression), tuple(tiles.values()), lowering.warps, lowering.stages,
            lowering.combine, plan.split, plan.parts, tma=lowering.tma, groups=lowering.groups,
        )  # fmt: skip
        if isinstance(made, Illegal) or source is None:
            points.append(replace(point, failed=str(made)))
            return
        point = replace(point, shared=made.shared, registers=made.registers, spills=made.spills)
        if made.shared > device.fast:
            why = "more shared memory than a block may have"
            points.append(replace(point, failed=why))
            return
        result = worker.measure(chain, [[GpuKernel(chain, source, made)]], seed)[0]
        conditions.update(result.conditions)
        points.append(
            replace(point, seconds=result.seconds, error=result.error, failed=result.failed)
        )

    compiled(found, chosen, device, compilers, take)
    return Landscape(name, chain, device, conditions, tuple(points))


def drawn(found: Candidates, device: Device, count: int, seed: int) -> list[Candidate]:
    """So many candidates: a third from the fitted model's best, a third from those that it thinks
    near them, a third at random. Random ones alone hardly meet the region that a search is about,
    and the model's best alone would hide what it underrates."""
    rng = np.random.default_rng(seed)
    times = found.each(found.rows, partial(predict, device))
    order = np.argsort(times, kind="stable")
    near = order[: int((times <= NEAR * times.min()).sum())]
    chosen = dict.fromkeys(rng.permutation(order[: BEST * count])[: count // 3].tolist())
    for among in (near, order):
        wanted = len(chosen) + count // 3
        for i in rng.permutation(among).tolist():
            if len(chosen) == wanted:
                break
            chosen[i] = None
    return [found.candidate(i) for i in chosen]


def write(path: Path, landscape: Landscape) -> None:
    """A JSON file with a line for each point."""
    head = {
        "name": landscape.name,
        "chain": to_json(landscape.chain),
        "device": landscape.device.name,
        "conditions": landscape.conditions,
        "columns": list(Point.__dataclass_fields__),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = ",\n  ".join(json.dumps(list(asdict(p).values())) for p in landscape.points)
    text = "{\n" + ",\n".join(lines) + ',\n "points": [\n  ' + rows + "\n ]\n}\n"
    path.write_text(text)


def read(path: Path) -> Landscape:
    """What `write` wrote; columns that are new since are empty. Raises InputError where the file
    holds something else."""
    document: dict[str, Any] = read_json(path, f"landscape '{path}'")
    points = []
    try:
        for row in document["points"]:
            fields = dict(zip(document["columns"], row, strict=True))
            points.append(Point(**{**fields, "tiles": tuple(fields["tiles"])}))
        return Landscape(
            document["name"], from_json(document["chain"]), device_named(document["device"]),
            document["conditions"], tuple(points),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"landscape '{path}' is not one of mcfuser's: {error}; measure it again"
        ) from None


def plan_of(known: Space, point: Point) -> Plan:
    """The plan that a point stands for, in the space of its chain."""
    dead = known.dead(dict(zip(known.axes, point.tiles, strict=True)))
    return Plan(known.program, parse(point.expression), dead, point.split, point.parts)
