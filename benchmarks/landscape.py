"""Landscapes: many candidates of one chain, measured, in a file that models are judged by."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mcfuser.arguments.files import read_json
from mcfuser.backend import Builder, Kernel
from mcfuser.backends import backend_of
from mcfuser.chain import Chain, from_json, to_json
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.lowering.triton.precision import THREADS
from mcfuser.measure.worker import Worker
from mcfuser.space.candidates import Candidate, Candidates, candidates
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Plan
from mcfuser.space.prune import Space, distinct, parted, prune, space
from mcfuser.space.statement import Illegal

BEST = 2
"""The model's best are drawn from so many times as many as are measured in all."""
NEAR = 3.0
"""Candidates within this factor of the model's first are near it."""


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
    dot: str = THREADS

    @property
    def settings(self) -> TritonKnobs:
        return TritonKnobs(self.warps, self.stages, self.combine, self.tma, self.groups, self.dot)


@dataclass(frozen=True)
class Landscape:
    """Points of one chain on one device, and how they were measured."""

    name: str
    chain: Chain
    device: Device
    conditions: dict[str, Any]
    points: tuple[Point, ...]


def whole(chain: Chain, device: Device, groups: bool = False) -> Candidates:
    """All candidates of a chain for a GPU, under every setting worth a look: those whose warps all
    do the same, or those with groups that have work of their own."""
    backend = backend_of(device)
    pruned, _ = prune(tiled(chain, device), device)
    table = KnobTable(backend.knobs, device)
    found = candidates(parted(distinct(pruned), device), table, backend.feasible)
    grouped = table.columns(found.rows[:, -1])["groups"]
    return replace(found, rows=found.rows[grouped == groups])


def tiled(chain: Chain, device: Device) -> Space:
    """The space of a chain as the device's back end tiles it."""
    backend = backend_of(device)
    return space(backend.tiled(chain, device), lines=backend.lines, walks=backend.walks)


def compiled(
    chain: Chain, found: Candidates, chosen: Sequence[Candidate], builder: Builder,
    take: Callable[[Candidate, Kernel | Illegal], None],
) -> None:  # fmt: skip
    """Builds candidates; `take` is told of each as it comes."""
    begun = {}
    for candidate in chosen:
        plan, tiles = found.plan(candidate)
        settings = found.settings(candidate)
        try:
            building = builder.begin(chain, plan.schedule(tiles), "kernel", settings)
        except Illegal as illegal:
            take(candidate, illegal)
            continue
        begun[building.done] = candidate, building
    for future in as_completed(begun):
        candidate, building = begun[future]
        try:
            take(candidate, building.kernel())
        except Illegal as illegal:
            take(candidate, illegal)


def measure(
    name: str, chain: Chain, device: Device, chosen: Sequence[Candidate], found: Candidates,
    worker: Worker, seed: int,
) -> Landscape:  # fmt: skip
    """Builds and measures candidates of a chain."""
    points: list[Point] = []
    conditions: dict[str, Any] = {}

    def take(candidate: Candidate, made: Kernel | Illegal) -> None:
        plan, tiles = found.plan(candidate)
        settings = found.settings(candidate)
        point = Point(
            str(plan.expression), tuple(tiles.values()), settings.warps, settings.stages,
            settings.combine, plan.split, plan.parts, tma=settings.tma, groups=settings.groups,
            dot=settings.dot,
        )  # fmt: skip
        if isinstance(made, Illegal):
            points.append(replace(point, failed=str(made)))
            return
        used = made.resources
        point = replace(
            point, shared=used["shared"], registers=used["registers"], spills=used["spills"]
        )
        if made.resources["shared"] > device.fast:
            why = "more shared memory than a block may have"
            points.append(replace(point, failed=why))
            return
        result = worker.measure(chain, [[made]], seed)[0]
        conditions.update(result.conditions)
        points.append(
            replace(point, seconds=result.seconds, error=result.error, failed=result.failed)
        )

    compiled(chain, found, chosen, worker.builder, take)
    return Landscape(name, chain, device, conditions, tuple(points))


def drawn(found: Candidates, device: Device, count: int, seed: int) -> list[Candidate]:
    """So many candidates: a third from the fitted model's best, a third from those that it thinks
    near them, a third at random. Random ones alone hardly meet the region that a search is about,
    and the model's best alone would hide what it underrates."""
    rng = np.random.default_rng(seed)
    times = found.estimates(found.rows, backend_of(device).estimate)
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
