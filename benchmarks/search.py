"""The search over landscapes that were measured, with made-up times of the compiler.

    python benchmarks/search.py [--workers 16] [--in-flight 18] [--seeds 6] [LANDSCAPE.json ..]

Candidates of a landscape are all that there is, the fitted model ranks them, and a compilation
takes as long as a log-normal number says, the median being 1. Prints for each landscape how far
above its best the search ends, how many candidates it began, and how long it took, in medians of
one compilation; means over the seeds. For judging a rule of the search without a GPU.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from judge import by_plan, columns
from landscape import Landscape, read
from mcfuser.backends import backend_of
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.search.evolve import Candidate, evolve
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Floats, Ints
from mcfuser.tune.search import in_flight

DATA = Path(__file__).parent / "data" / "h200"
DEVIATION = 0.45
"""Of the logarithm of a compilation's time: that of attention's candidates on 16 cores."""
MEASURING = 0.03
"""How long a measurement takes, as a share of a compilation; one at a time."""


class Clock:
    """Measures candidates `workers` at a time; `now` is in compilations."""

    def __init__(self, seconds: dict[Candidate, float], workers: int, seed: int) -> None:
        self.seconds, self.rng, self.now, self.begun = seconds, np.random.default_rng(seed), 0.0, 0
        self.free = [0.0] * workers
        self.running: list[tuple[float, Candidate]] = []

    def __call__(self, candidates: Sequence[Candidate], last: bool) -> dict[Candidate, float]:
        for c in candidates:
            start = max(self.now, heapq.heappop(self.free))
            end = start + float(self.rng.lognormal(0.0, DEVIATION))
            heapq.heappush(self.free, end)
            heapq.heappush(self.running, (end, c))
        self.begun += len(candidates)
        ended: dict[Candidate, float] = {}
        self.now = max(self.now, self.running[0][0])
        while self.running and self.running[0][0] <= self.now:
            _, c = heapq.heappop(self.running)
            ended[c] = self.seconds[c]
            self.now += MEASURING
        return ended


def rows_of(landscape: Landscape) -> tuple[Ints, Floats, NDArray[np.float64]]:
    """Candidates as rows of numbers, what the fitted model says of them, and what was measured."""
    families: dict[object, int] = {}
    rows, times, seconds = list[Ints](), list[Floats](), list[float]()
    for plan, points in by_plan(landscape, landscape.points).items():
        family = families.setdefault((plan.expression, plan.split, plan.parts), len(families))
        tiles, settings = columns(points)
        device = landscape.device
        times.append(backend_of(device).estimate(plan, tiles, settings, device))
        table = KnobTable(TritonKnobs, device)
        numbers = [table.number(p.settings) for p in points]
        rows.append(np.column_stack([np.full(len(points), family), tiles, numbers]))
        seconds += [p.seconds or float("inf") for p in points]
    return np.vstack(rows), np.concatenate(times), np.asarray(seconds)


def simulate(landscape: Landscape, workers: int, under_way: int, seeds: int) -> tuple[float, ...]:
    """The best found over the best there is, candidates begun, and the time: means over seeds."""
    rows, times, seconds = rows_of(landscape)
    known = dict(zip(map(tuple, rows.tolist()), seconds.tolist(), strict=True))
    made = []
    for seed in range(seeds):
        clock = Clock(known, workers, seed)
        found = evolve(rows, times, clock, seed, in_flight=under_way, ranked=True,
                       diversity_key=lambda c: c[1:-1])  # fmt: skip
        made.append((found.seconds / seconds.min(), clock.begun, clock.now))
    return tuple(float(x) for x in np.mean(made, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("landscapes", nargs="*", type=Path, help="files; those of the H200 if none")
    parser.add_argument("--workers", type=int, default=16, help="compilations at a time")
    parser.add_argument(
        "--in-flight", type=int, help="candidates under way, as the product has if none"
    )
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    under_way = given.in_flight or in_flight(given.workers)
    every = []
    for path in given.landscapes or sorted(DATA.glob("*.json")):
        every.append(simulate(read(path), given.workers, under_way, given.seeds))
        over, begun, took = every[-1]
        print(f"{path.stem:4} {over:.3f} of the best, {begun:.0f} begun, {took:.2f} compilations")
    over, begun, took = np.mean(every, axis=0)
    print(f"mean {over:.4f} of the best, {begun:.1f} begun, {took:.2f} compilations")


if __name__ == "__main__":
    main()
