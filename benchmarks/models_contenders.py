"""Contenders of `benchmarks/models.py`, timed in turns in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class TurnLimits:
    """How contenders are timed: rounds in all, seconds of a sample, and of rest before it."""

    rounds: int
    sample: float
    rest: float


ON_GPU = TurnLimits(51, 0.01, 0.0)
ON_HOST = TurnLimits(15, 0.1, 0.05)
"""The rest lets the threads of the contender before fall asleep, which spin for a while."""


@dataclass(frozen=True)
class Contender:
    """A model that is ready to run.

    `outputs` runs it once and gives its outputs. `call` runs it once more: on a GPU it puts the
    work on `stream` and need not wait; without a stream it returns when the work is done. `note`
    says what is unlike its name; `spent` tells where its time goes.
    """

    outputs: Callable[[], list[NDArray[np.generic]]]
    call: Callable[[], object]
    stream: Any = None
    note: str = ""
    spent: Callable[[], dict[str, Any]] | None = None


def timed_in_turns(
    contenders: Mapping[str, Contender], limits: TurnLimits
) -> dict[str, list[float]]:
    """Seconds a call of each contender in each round; the order turns from round to round."""
    counts = {}
    for name, one in contenders.items():
        _sample(one, 1)
        once = min(_sample(one, 1) for _ in range(3))
        counts[name] = max(1, math.ceil(limits.sample / max(once, 1e-6)))
    names = list(contenders)
    times: dict[str, list[float]] = {n: [] for n in names}
    for i in range(limits.rounds):
        at = i % max(1, len(names))
        for n in names[at:] + names[:at]:
            time.sleep(limits.rest)
            _sample(contenders[n], 1)
            times[n].append(_sample(contenders[n], counts[n]))
    return times


def _sample(one: Contender, count: int) -> float:
    """Seconds a call, of `count` calls one after the other."""
    if one.stream is None:
        begun = time.perf_counter()
        for _ in range(count):
            one.call()
        return (time.perf_counter() - begun) / count
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(one.stream):
        before.record()
        for _ in range(count):
            one.call()
        after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3 / count


def as_arrays(result: Tensor | Sequence[Tensor]) -> list[NDArray[np.generic]]:
    """Tensors of torch as arrays on the host."""
    many = [result] if isinstance(result, Tensor) else list(result)
    return [t.detach().cpu().numpy() for t in many]
