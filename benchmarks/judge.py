"""How well models rank what was measured: correlations, and what their best candidates cost.

The fitted model is judged on each landscape with constants fitted to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from landscape import Landscape, Point, plan_of, tiled
from mcfuser.backends import backend_of
from mcfuser.backends.cuda.backend import counted
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.model import analytical, fitted, roofline
from mcfuser.model.feasible import spills_too_much
from mcfuser.model.ranking import pearson, spearman, top
from mcfuser.space.knobs import Columns, declared
from mcfuser.space.plan import Floats, Ints, Plan


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model on a landscape. `top` and `first` are times of the best of the model's first eight
    and of its first, over the best time measured."""

    landscape: str
    model: str
    count: int
    pearson: float
    spearman: float
    top: float
    first: float


@dataclass(frozen=True)
class Known:
    """A landscape's candidates that ran right and are worth a look, as models see them."""

    landscape: Landscape
    sample: fitted.FitSample
    equation: Floats
    roofline: Floats


def known(landscape: Landscape) -> Known:
    device = landscape.device
    right = [p for p in landscape.points if p.seconds is not None]
    parts: list[tuple[Floats, ...]] = []
    for plan, points in by_plan(landscape, right).items():
        tiles, settings = columns(points)
        kept = backend_of(device).feasible(plan, tiles, settings, device)
        seconds, tiles = np.asarray([p.seconds for p in points])[kept], tiles[kept]
        settings = {name: column[kept] for name, column in settings.items()}
        parts.append((*counted(device, plan, tiles, settings), seconds,
                      analytical.estimate(plan, tiles, device),
                      roofline.overlapped(plan, tiles, device)))  # fmt: skip
    events, dram_seconds, seconds, equation, roof = (
        np.concatenate(c) for c in zip(*parts, strict=True)
    )
    return Known(landscape, fitted.FitSample(events, dram_seconds, seconds), equation, roof)


def by_plan(landscape: Landscape, points: Sequence[Point]) -> dict[Plan, list[Point]]:
    """Points of a landscape, but for those that the compiler gave up on."""
    every = tiled(landscape.chain, landscape.device)
    groups: dict[Plan, list[Point]] = {}
    for point in points:
        if not spills_too_much(point.spills or 0):
            groups.setdefault(plan_of(every, point), []).append(point)
    return groups


def columns(points: Sequence[Point]) -> tuple[Ints, Columns]:
    """Points of a plan as models take them: tiles [points, axes], and settings by knob."""
    tiles = np.asarray([p.tiles for p in points], np.int64)
    names = [k.name for k in declared(TritonKnobs)]
    return tiles, {name: np.asarray([getattr(p, name) for p in points]) for name in names}


def fit(found: Sequence[Known]) -> dict[str, float]:
    """The fitted model's constants from some landscapes."""
    return fitted.fit([k.sample for k in found])


def judge(found: Sequence[Known]) -> list[Verdict]:
    """Every model on every landscape."""
    verdicts = []
    for k in found:
        others = [o for o in found if o is not k]
        models: dict[str, Floats] = {"equation (2)": k.equation, "roofline": k.roofline}
        if others:
            models["fitted to the others"] = predicted(k, fit(others))
        verdicts += [verdict(k, name, times) for name, times in models.items()]
    return verdicts


def predicted(k: Known, costs: Mapping[str, float]) -> Floats:
    return fitted.predicted(k.sample.events, k.sample.dram_seconds, costs)


def verdict(k: Known, model: str, times: Floats) -> Verdict:
    seconds = k.sample.seconds
    return Verdict(
        k.landscape.name, model, len(times), pearson(times, seconds), spearman(times, seconds),
        top(times, seconds), top(times, seconds, 1),
    )  # fmt: skip
