"""A kernel that nobody measures: the best by the model that is built, fits, and is proven."""

from __future__ import annotations

import math
import time
from collections import Counter

import pytest

from mcfuser.backend import Kernel
from mcfuser.chain import gemm
from mcfuser.measure.request import Measured, failure
from mcfuser.space.candidates import Candidate, Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.statement import Illegal
from mcfuser.tune import choice
from mcfuser.tune.choice import CHOICES, TRUSTED, chosen
from mcfuser.tune.expected import pruned
from mcfuser.tune.progress import unheard
from mcfuser.tune.tuned import TuneOptions
from tests.support.interpreted import DEVICE, INTERPRETED
from tests.support.workers import StandIn

CHAIN = gemm(1, 32, 32, 16, 16)


class Bench(StandIn):
    """Builds kernels of which some are refused or do not fit."""

    def __init__(self, illegal: int = 0, unfit: int = 0) -> None:
        super().__init__(DEVICE, INTERPRETED)
        self.illegal, self.left, self.built = illegal, unfit, 0
        begin = self.builder.begin

        def counted(*given):
            self.built += 1
            if self.built <= self.illegal:
                raise Illegal("it has no text")
            return begin(*given)

        object.__setattr__(self.builder, "begin", counted)
        self.backend = type("Backend", (type(INTERPRETED),), {"unfit": self._unfit})()

    def _unfit(self, kernel: Kernel, device, measured: bool) -> str | None:
        assert not measured
        self.left -= 1
        return "its registers spill" if self.left >= 0 else None


@pytest.fixture(scope="module")
def found() -> Candidates:
    space, _ = pruned(CHAIN, DEVICE, TuneOptions())
    return candidates(space, KnobTable(INTERPRETED.knobs, DEVICE), INTERPRETED.feasible)


def choose(found, bench, failed=None, results=None, deadline=math.inf, carried=()):
    counted = failed if failed is not None else Counter()
    return chosen(CHAIN, found, carried, bench, "kernel", True, counted, results or {}, deadline,
                  unheard)  # fmt: skip


def ranked(found: Candidates) -> list[Candidate]:
    times = found.estimates(found.rows, INTERPRETED.estimate)
    return [found.candidate(i) for i in times.argsort(kind="stable")]


def test_the_model_s_best_is_chosen_and_not_measured(found) -> None:
    best = choose(found, Bench())
    times = found.estimates(found.rows, INTERPRETED.estimate)
    assert best is not None and best.predicted == times.min()
    assert best.result == Measured(None, None) and best.trials == 1


def test_what_was_best_for_a_related_chain_comes_first_unless_the_model_expects_far_less_of_it(
    found,
) -> None:
    def taken(candidate: Candidate) -> bool:
        best = choose(found, Bench(), carried=[candidate])
        assert best is not None
        plan, tiles = found.plan(candidate)
        return (best.plan, best.tiles, best.settings) == (plan, tiles, found.settings(candidate))

    order = ranked(found)
    times = sorted(found.estimates(found.rows, INTERPRETED.estimate))
    near = max(i for i, t in enumerate(times) if t <= TRUSTED * times[0])
    assert 0 < near < len(order) - 1
    assert taken(order[near]) and not taken(order[near + 1])


def test_what_is_refused_or_does_not_fit_is_counted_and_left(found) -> None:
    failed: Counter[str] = Counter()
    best = choose(found, Bench(illegal=2, unfit=3), failed)
    assert best is not None and best.trials == 6
    assert failed == {"it has no text": 2, "its registers spill": 3}


def test_what_was_found_wrong_is_not_chosen(found) -> None:
    first, second = ranked(found)[:2]
    best = choose(found, Bench(), results={first: failure("its error is 1")})
    assert best is not None
    plan, tiles = found.plan(second)
    assert (best.plan, best.tiles, best.settings) == (plan, tiles, found.settings(second))


def test_a_schedule_that_is_disproven_is_not_chosen(found, monkeypatch) -> None:
    verdicts = iter(["it is wrong where it was interpreted", None])
    monkeypatch.setattr(choice, "disproof", lambda *given: next(verdicts))
    failed: Counter[str] = Counter()
    assert choose(found, Bench(), failed) is not None
    assert failed == {"it is wrong where it was interpreted": 1}


def test_where_no_time_is_left_a_few_are_tried(found) -> None:
    bench = Bench(unfit=1000)
    assert choose(found, bench, deadline=time.monotonic() - 1.0) is None
    assert bench.built == CHOICES
