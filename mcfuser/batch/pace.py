"""Whether an entry got slower than its baseline in mcfuser.lock.

One time of a busy machine proves nothing, so a time above the margin is measured again: where the
module of the baseline is still at hand, it and the new one in turns, else the new one alone, whose
best time counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mcfuser.batch.outcome import Outcome
from mcfuser.batch.state import BASELINE, has

ROUNDS = 3
"""How often a module is measured again."""

MeasureModule = Callable[[Path], float | None]
"""The seconds of one run of the module in a folder; None where it cannot be run."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What an entry took when it was locked: seconds of one run, and the SHA-256 of the module.

    `margin` is the part by which it may get slower: 0.1 for 10 %.
    """

    seconds: float
    module: str
    margin: float

    @property
    def most(self) -> float:
        """The longest that passes, in seconds."""
        return self.seconds * (1 + self.margin)


def judged(outcome: Outcome, folder: Path, baseline: Baseline, measure: MeasureModule) -> Outcome:
    """The outcome, which is `slower` where the module surely takes longer than the baseline."""
    first = outcome.mcfuser_seconds
    if outcome.state != "passed" or first is None:
        return outcome
    outcome = replace(outcome, baseline_seconds=baseline.seconds)
    if first <= baseline.most:
        return outcome
    before = folder / BASELINE
    if outcome.module != baseline.module and has(before / "module.so", baseline.module):
        return _in_turns(outcome, folder, before, baseline, measure)
    times = [first]
    while len(times) <= ROUNDS and min(times) > baseline.most:
        seconds = measure(folder)
        if seconds is None:
            break
        times.append(seconds)
    best = min(times)
    told = f"{best * 1e3:.4g} ms, the best of {len(times)} runs"
    return _compared(outcome, best, best / baseline.seconds, baseline, told)


def _in_turns(
    outcome: Outcome, folder: Path, before: Path, baseline: Baseline, measure: MeasureModule
) -> Outcome:
    pairs = [(measure(before), measure(folder)) for _ in range(ROUNDS)]
    old = [seconds for seconds, _ in pairs if seconds is not None]
    new = [seconds for _, seconds in pairs if seconds is not None]
    if not old or not new:
        return outcome
    median = statistics.median(new)
    told = f"{median * 1e3:.4g} ms in {len(new)} turns with the module of the baseline"
    return _compared(outcome, median, median / statistics.median(old), baseline, told)


def _compared(
    outcome: Outcome, seconds: float, ratio: float, baseline: Baseline, told: str
) -> Outcome:
    outcome = replace(outcome, mcfuser_seconds=seconds)
    if ratio <= 1 + baseline.margin:
        return outcome
    reason = (
        f"it takes {told}, {ratio:.2f} times its baseline of {baseline.seconds * 1e3:.4g} ms, and "
        f"{1 + baseline.margin:.4g} times passes; if that is meant, say --update-lock"
    )
    return replace(outcome, state="slower", reason=reason)
