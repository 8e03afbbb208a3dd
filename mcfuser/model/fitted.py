"""A model of GPU kernels whose constants are fitted: seconds for each event of each term.

t = launch + ceil(blocks / units) * (block + busy) + waves * waits: blocks on a multiprocessor queue
for its units, and overlap their waits, as many of them as it holds at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mcfuser.device import CATALOGUE, Device
from mcfuser.model.resources import HOPPER, Lowered
from mcfuser.model.terms import BUSY, WAITS, Terms, terms
from mcfuser.space.plan import Floats, Ints, Plan

NAMES = ("launch", "block", *WAITS, *BUSY)
MODEL = "nvidia/h200"
"""The device whose constants stand in, scaled, for those of one that was not probed."""
NEAR = 3.0
"""Candidates within this factor of the best count twice in a fit: they are the ones to rank."""
ROUNDS = 600


def estimate(made: Lowered, device: Device) -> Floats:
    """Seconds for each candidate."""
    known, found = costs(device), terms(made, device)
    result: Floats = matrix(found, device) @ np.asarray([known.get(n, 0.0) for n in NAMES])
    return result + found.far


def lowered(
    plan: Plan, tiles: Ints, warps: Ints, stages: Ints, last: NDArray[np.bool_], device: Device
) -> Lowered:
    """Candidates of a plan as Triton makes them for a device."""
    return Lowered(plan, tiles, warps, stages, last, device.arch == HOPPER)


def matrix(found: Terms, device: Device) -> Floats:
    """Events [candidates, terms] as they add up in time: the columns of `NAMES`."""
    queue = np.ceil(found.blocks / device.units)
    waves = np.ceil(queue / found.resident)
    columns = [np.ones(found.size), queue]
    columns += [found.of(n) * waves for n in WAITS]
    columns += [found.of(n) * queue for n in BUSY]
    return np.stack(columns, axis=1)


def costs(device: Device) -> Mapping[str, float]:
    """The device's constants; where it was not probed, those of one that was, with memory and
    arithmetic slower by what the published rates of a multiprocessor differ by."""
    if device.costs:
        return dict(device.costs)
    known = CATALOGUE[MODEL]
    memory = known.bandwidth / known.units / (device.bandwidth / device.units)
    tensor = _rate(known) / _rate(device)
    scale = {"memory": memory, "tensor": tensor}
    return {n: c * scale.get(BUSY.get(n, ""), 1.0) for n, c in known.costs}


def _rate(device: Device) -> float:
    return device.throughput("float16") / device.units


def fit(samples: Sequence[tuple[Floats, Floats]]) -> dict[str, float]:
    """Constants that explain measured times best: least squares of relative errors, none negative.

    A sample is a chain's `matrix` and seconds, without those of `Terms.far`; every chain weighs the
    same.
    """
    rows, ones = [], []
    for events, seconds in samples:
        near = np.where(seconds < NEAR * seconds.min(), 2.0, 1.0)
        weight = near / seconds / np.sqrt(len(seconds))
        rows.append(events * weight[:, None])
        ones.append(seconds * weight)
    table = np.vstack(rows)
    scale = np.linalg.norm(table, axis=0)
    used = scale > 0
    table = table[:, used] / scale[used]
    found = _nonnegative(table.T @ table, table.T @ np.concatenate(ones))
    values = np.zeros(len(NAMES))
    values[used] = found / scale[used]
    return {n: float(v) for n, v in zip(NAMES, values, strict=True) if v > 0}


def _nonnegative(gram: Floats, target: Floats) -> Floats:
    """Least squares without negative values, by coordinate descent."""
    found = np.zeros(len(target))
    for _ in range(ROUNDS):
        for j in range(len(found)):
            step = (target[j] - gram[j] @ found) / max(gram[j, j], 1e-30)
            found[j] = max(0.0, found[j] + step)
    return found
