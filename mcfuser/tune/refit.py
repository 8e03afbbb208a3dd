"""Refits the model's constants for a device to the candidates that its searches have kept.

New constants are judged on what they have not seen: each chain's candidates are ranked with
constants that were fitted to those of the other chains. They are worth keeping only where that
ranking is better than the one by the constants in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcfuser.backend import Backend
from mcfuser.device import Device
from mcfuser.errors import ChainError, InputError
from mcfuser.model.fitted import FitSample, costs, fit, predicted
from mcfuser.model.ranking import spearman, top
from mcfuser.space.candidates import Candidate
from mcfuser.space.plan import Floats, Plan
from mcfuser.tune.expected import all_candidates
from mcfuser.tune.tried import Tried, results_of
from mcfuser.tune.tuned import Tuned, TuneOptions

CHAINS, CANDIDATES, ALL = 4, 12, 100
"""Chains, candidates of each of them, and candidates in all, below which nothing is fitted."""
GAIN = 0.01
"""The least gain in rank correlation for which constants are changed."""
SLACK = 0.005
"""The best of the first eight may be so much worse, relatively, where the ranks are better."""


@dataclass(frozen=True)
class MeasuredChain:
    """The candidates of a chain that were measured, as the model sees them."""

    name: str
    sample: FitSample


@dataclass(frozen=True, slots=True)
class Ranking:
    """How constants rank the candidates of chains, the mean over these: the rank correlation of
    those near the best (Spearman), and the best of the first eight over the best measured."""

    spearman: float
    top: float

    def to_json(self) -> dict[str, float]:
        return {"spearman": self.spearman, "top": self.top}


@dataclass(frozen=True, slots=True)
class Refit:
    """Constants fitted to the candidates of some chains, and the rankings with the constants in use
    (`before`) and with those fitted to all other chains (`after`). `few` names the chains that were
    left out because they have few candidates."""

    constants: Mapping[str, float]
    chains: tuple[str, ...]
    candidates: int
    few: tuple[str, ...]
    before: Ranking
    after: Ranking

    @property
    def better(self) -> bool:
        """Whether chains that the fit has not seen are ranked better by it."""
        near = self.after.top <= self.before.top * (1 + SLACK)
        return near and self.after.spearman >= self.before.spearman + GAIN

    def to_json(self) -> dict[str, Any]:
        return {
            "chains": list(self.chains),
            "candidates": self.candidates,
            "few": list(self.few),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "better": self.better,
        }


def refit(kept: Iterable[tuple[Tuned, Sequence[Tried]]], device: Device, backend: Backend) -> Refit:
    """Fits the constants of a device to the candidates that were kept of kernels, the newest of a
    chain's kernels first.

    Terms that occur in no candidate keep the constants that are in use. Raises InputError where the
    device's model has no constants, or there are too few candidates.
    """
    if not backend.has_constants:
        raise InputError(
            f"the model of {device.name} has no constants that could be fitted: it computes times "
            "from rates that are measured whenever the device is used"
        )
    found, few = samples(kept, device, backend)
    total = sum(len(s.sample.seconds) for s in found)
    if len(found) < CHAINS or total < ALL:
        raise InputError(
            f"{total} candidates of {len(found)} chains with at least {CANDIDATES} each are kept "
            f"for {device.name}, and a fit needs {ALL} of {CHAINS}; tune more chains on that device"
        )
    current = dict(costs(device))
    after = [
        ranking(s.sample, current | _fitted([o for o in found if o is not s], current))
        for s in found
    ]
    return Refit(
        current | _fitted(found, current),
        tuple(s.name for s in found),
        total,
        few,
        mean([ranking(s.sample, current) for s in found]),
        mean(after),
    )


def samples(
    kept: Iterable[tuple[Tuned, Sequence[Tried]]], device: Device, backend: Backend
) -> tuple[list[MeasuredChain], tuple[str, ...]]:
    """What the model sees of kept candidates, for each chain, and the names of the chains that have
    fewer than CANDIDATES. Of a chain's kernels the first with enough counts."""
    made: dict[str, MeasuredChain] = {}
    few: dict[str, str] = {}
    for tuned, tried in kept:
        key = tuned.chain.key
        if key in made:
            continue
        one = _sample(tuned, tried, device, backend)
        if one is None or len(one.seconds) < CANDIDATES:
            few[key] = tuned.chain.name
        else:
            made[key] = MeasuredChain(tuned.chain.name, one)
    return list(made.values()), tuple(name for key, name in few.items() if key not in made)


def _sample(
    tuned: Tuned, tried: Sequence[Tried], device: Device, backend: Backend
) -> FitSample | None:
    """A kernel's candidates that ran and are still searched here; None if there are none."""
    options = TuneOptions(space=tuned.space, shifts=tuned.shifts)
    right = [t for t in tried if t.seconds is not None]
    if not right:
        return None
    try:
        every = all_candidates(tuned.chain, device, options, backend)
    except ChainError:
        return None
    results = results_of(tuned.chain, every, tuned.shifts, right)
    groups: dict[Plan, list[Candidate]] = {}
    for row in results:
        groups.setdefault(every.plan(row)[0], []).append(row)
    parts: list[tuple[Floats, Floats, Floats]] = []
    for plan, rows in groups.items():
        genes = np.asarray(rows, np.int64)
        settings = every.table.columns(genes[:, -1])
        events, dram_seconds = backend.events(plan, genes[:, 1:-1], settings, device)
        seconds = np.asarray([results[row].seconds for row in rows], np.float64)
        parts.append((events, dram_seconds, seconds))
    if not parts:
        return None
    return FitSample(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _fitted(found: Sequence[MeasuredChain], start: Mapping[str, float]) -> dict[str, float]:
    return fit([s.sample for s in found], start)


def ranking(sample: FitSample, constants: Mapping[str, float]) -> Ranking:
    """How constants rank the candidates of one chain."""
    times = predicted(sample.events, sample.dram_seconds, constants)
    return Ranking(spearman(times, sample.seconds), top(times, sample.seconds))


def mean(rankings: Sequence[Ranking]) -> Ranking:
    """The mean of rankings of several chains."""
    return Ranking(
        float(np.mean([r.spearman for r in rankings])), float(np.mean([r.top for r in rankings]))
    )
