"""A model of GPU kernels whose constants are fitted: seconds for each event of each term.

    t = launch + once + (shared + queue * busy + waves * waits)

Blocks on a multiprocessor queue for its units, and overlap their waits, as many of them as it holds
at once. Where the tensors outgrow the cache, what is in brackets overlaps with the time of memory.
Kernels whose warp groups do not wait for each other have terms of their own (model.groups), and so
have those without products (model.plain).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE, REFERENCE
from mcfuser.lowering.triton.instructions import HOPPER
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model.groups import PACED
from mcfuser.model.groups import matrix as paced
from mcfuser.model.plain import PLAIN
from mcfuser.model.plain import matrix as plain
from mcfuser.model.terms import BUSY, ONCE, SHARED, WAITS, begun, terms
from mcfuser.space.plan import Floats, Ints, Plan

EVEN = ("launch", *ONCE, *SHARED, *WAITS, *BUSY)
"""Terms of kernels with products whose warps all do the same."""
NAMES = (*EVEN, *PACED, *PLAIN)
MEMORY = "memory"
"""How many times as long as by its published bandwidth memory takes."""
POWER = 5.0
"""Norm in which the multiprocessors' time and that of memory add up: both overlap."""
ALONE = 1 + len(ONCE)
"""The first of NAMES, which overlap with nothing."""
NEAR = 3.0
"""Candidates within this factor of the best count twice in a fit: they are the ones to rank."""
ROUNDS, TRIES, ENOUGH = 40, 6, 1e-5
"""Steps of a fit at most, attempts at each, and the gain below which it has ended."""
TINY = 1e-15
"""Seconds, where nothing but a launch is fitted."""
PRIOR = 1e-3
"""How firmly a constant that hardly matters stays where it began."""
REACH = 1.5
"""The most that the logarithm of a constant moves in one step."""


@dataclass(frozen=True)
class FitSample:
    """Candidates of a chain that were measured: `events` [candidates, NAMES]; `dram_seconds`, what
    moving the chain's tensors takes at the published bandwidth where they outgrow the cache, else
    0; and measured `seconds`."""

    events: Floats
    dram_seconds: Floats
    seconds: Floats


def predicted(events: Floats, dram_seconds: Floats, known: Mapping[str, float]) -> Floats:
    """Seconds [candidates] from events [candidates, NAMES], seconds of memory [candidates], and the
    constants by name (`known`)."""
    values = np.asarray([known.get(n, 0.0) for n in NAMES])
    near = events[:, ALONE:] @ values[ALONE:]
    result: Floats = events[:, :ALONE] @ values[:ALONE] + _overlapped(
        near, dram_seconds * known.get(MEMORY, 1.0)
    )
    return result


def _overlapped(near: Floats, memory: Floats) -> Floats:
    result: Floats = (near**POWER + memory**POWER) ** (1 / POWER)
    return result


def lowered(
    plan: Plan, tiles: Ints, warps: Ints, stages: Ints, last: NDArray[np.bool_], device: Device,
    tma: NDArray[np.bool_] | None = None, dot: NDArray[np.str_] | None = None,
) -> TritonCandidates:  # fmt: skip
    """Candidates of a plan under Triton, for a device."""
    return TritonCandidates(plan, tiles, warps, stages, last, device.arch == HOPPER, tma, dot)


def counted(made: TritonCandidates, device: Device, groups: bool = False) -> tuple[Floats, Floats]:
    """Events [candidates, NAMES] as they add up in time, and seconds of memory (`FitSample`).

    Without `groups`, all warps of a kernel do the same; with, they are warp groups that do not wait
    for each other (model.groups).
    """
    if not made.dots:
        counts = begun(made, device)
        return _table(PLAIN, plain(made, counts, device)), counts.dram_seconds
    counts = terms(made, device)
    if groups:
        return _table(PACED, paced(made, counts, device.units)), counts.dram_seconds
    queue, waves = counts.queue(device.units), counts.queue(device.units * counts.resident)
    columns = [np.ones(counts.size), *(counts.of(n) for n in ONCE)]
    columns += [counts.of(n) * counts.blocks / device.units for n in SHARED]
    columns += [counts.of(n) * waves for n in WAITS]
    columns += [counts.of(n) * queue for n in BUSY]
    return _table(EVEN, np.stack(columns, axis=1)), counts.dram_seconds


def _table(names: Sequence[str], events: Floats) -> Floats:
    """Events [candidates, NAMES], of which a kernel has those of some neighbouring names."""
    first = NAMES.index(names[0])
    result = np.zeros((len(events), len(NAMES)))
    result[:, first : first + len(names)] = events
    return result


def costs(device: Device) -> Mapping[str, float]:
    """The device's constants by name: those that were fitted on it, or else those of the device
    that the catalogue's were fitted on, scaled by how much slower this device is at each. The
    ratios come from readings of both devices' probes, or else from published rates."""
    known = CATALOGUE[REFERENCE]
    if device.costs and device.costs != known.costs:
        return dict(device.costs)
    slower = _slower(device, known)
    return {n: c * slower.get(GROUP.get(n, ""), 1.0) for n, c in known.costs}


GROUP: Mapping[str, str] = {
    **dict.fromkeys(("launch", *ONCE, "warps"), "launch"),
    **dict.fromkeys(("maps", "turn", "arrive", "fill", "load", "issue", "copy", "fetch"), "turn"),
    **dict.fromkeys(("across", "gather", "regather", "far_load", "far_fill"), "turn"),
    **dict.fromkeys(("paced_block", "paced_turn"), "turn"),
    **dict.fromkeys(("mma", "chain", "operands"), "warp"),
    **dict.fromkeys(("group", "group_all", "teams", "paced_product"), "product 128x128"),
    **dict.fromkeys(("reduce", "mask", "spill", "simple_all", "spread"), "function"),
    **dict.fromkeys(("plain_launch", "plain_second", "plain_ended", "plain_block"), "launch"),
    **dict.fromkeys(("plain_vector", "plain_handed", "plain_written"), "turn"),
    **dict.fromkeys(("plain_scalar", "plain_crossed"), "turn"),
    **dict.fromkeys(("plain_operation", "plain_step", "plain_shuffled", "plain_spill"), "function"),
    **dict.fromkeys(("plain_combined", "plain_distinct", "plain_sector", "plain_stored"), "cache"),
    "paced_operation": "function",
    **dict.fromkeys(("lines", "box", "narrow", "near", "distinct"), "cache"),
    **dict.fromkeys(("exposed", "stored", "cast"), "cache"),
    MEMORY: "memory",
}
"""The reading that tells how a term scales from one device to another."""


def _slower(device: Device, known: Device) -> Mapping[str, float]:
    if device.readings and known.readings:
        mine, its = dict(device.readings), dict(known.readings)
        ratios = {n: mine[n] / its[n] for n in mine if n in its}
        published = device.bandwidth / known.bandwidth
        return {**ratios, "memory": ratios["memory"] * published} if "memory" in ratios else ratios
    tensor = _rate(known) / _rate(device)
    cache = known.bandwidth / known.units / (device.bandwidth / device.units)
    return {"warp": tensor, "product 128x128": tensor, "cache": cache}


def _rate(device: Device) -> float:
    return device.throughput("float16") / device.units


def fit(
    samples: Sequence[FitSample], near: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """The positive constants that explain measured times best: least squares over the differences
    of logarithms, by damped Gauss-Newton steps over the logarithms of the constants.

    Every chain has the same weight. A term that occurs in no sample gets no constant. The steps
    begin at the constants `near`, where these are given, and a constant that hardly matters stays
    there.
    """
    events = np.vstack([s.events for s in samples])
    dram_seconds = np.concatenate([s.dram_seconds for s in samples])
    seconds = np.concatenate([s.seconds for s in samples])
    weight = np.concatenate([
        np.where(s.seconds < NEAR * s.seconds.min(), 2.0, 1.0) / np.sqrt(len(s.seconds))
        for s in samples
    ])  # fmt: skip
    used = np.flatnonzero(events.any(axis=0))
    table = events[:, used]
    start = np.log(np.median(seconds) / table.mean(axis=0) / len(used))
    names = [NAMES[i] for i in used]
    begun = [math.log(near[n]) if n in near else s for n, s in zip(names, start, strict=True)]
    squares = _LeastSquares(table, dram_seconds, np.log(seconds), weight, int((used < ALONE).sum()))
    constants = _minimum(squares, np.asarray([*begun, math.log(near.get(MEMORY, 1.0))]))
    return {n: float(v) for n, v in zip([*names, MEMORY], constants, strict=True)}


@dataclass(frozen=True)
class _LeastSquares:
    table: Floats
    dram_seconds: Floats
    target: Floats
    weight: Floats
    alone: int

    def at(self, logs: Floats) -> tuple[Floats, Floats]:
        """Weighted residuals at some constants' logarithms, and their derivatives."""
        parts = self.table * np.exp(logs[:-1])
        near = parts[:, self.alone :].sum(axis=1) + TINY
        memory = self.dram_seconds * np.exp(logs[-1])
        both = _overlapped(near, memory)
        total = parts[:, : self.alone].sum(axis=1) + both
        parts[:, self.alone :] *= ((near / both) ** (POWER - 1))[:, None]
        slope = np.column_stack([parts, memory * (memory / both) ** (POWER - 1)]) / total[:, None]
        return self.weight * (np.log(total) - self.target), self.weight[:, None] * slope


def _minimum(squares: _LeastSquares, start: Floats) -> Floats:
    """The constants from which no step reduces the cost any further."""
    logs, damping = start, 1e-2
    miss, slope = squares.at(logs)
    cost = float(miss @ miss)
    for _ in range(ROUNDS):
        before = cost
        pull = PRIOR * (logs - start)
        gram, force = slope.T @ slope + PRIOR * np.eye(len(logs)), slope.T @ miss + pull
        for _ in range(TRIES):
            damped = gram + damping * np.diag(np.diag(gram))
            step = logs - np.clip(np.linalg.solve(damped, force), -REACH, REACH)
            made, bent = squares.at(step)
            tried = float(made @ made + PRIOR * ((step - start) ** 2).sum())
            if tried < cost:
                logs, miss, slope, cost, damping = step, made, bent, tried, damping / 3
                break
            damping *= 4
        if cost > (1 - ENOUGH) * before:
            break
    result: Floats = np.exp(logs)
    return result
