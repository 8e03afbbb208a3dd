"""A kernel that nobody measures: the best by the model that is built, fits, and is proven."""

from __future__ import annotations

import math
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from mcfuser.backend import Kernel
from mcfuser.chain import gemm
from mcfuser.measure.request import Measured, failure
from mcfuser.model.feasible import SPILLED
from mcfuser.process.child import NO_TIME
from mcfuser.space.candidates import Candidate, Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.statement import Illegal
from mcfuser.tune import choice
from mcfuser.tune.choice import ATTEMPTS, CHOICES, begin_ahead, chosen
from mcfuser.tune.expected import pruned
from mcfuser.tune.progress import unheard
from mcfuser.tune.related import TRUSTED
from mcfuser.tune.search import Best
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
    space, _ = pruned(CHAIN, DEVICE, TuneOptions(), INTERPRETED)
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


LARGE = 2**20


def bytes_of(elements: float) -> int:
    """What threads spill of so many elements of a block: SPILLED, of LARGE ones."""
    return math.ceil(elements * SPILLED / LARGE)


class Spilling(Bench):
    """Kernels spill whose tiles have more elements than a limit; threads hold a tile."""

    def __init__(self, limit: float, knows: bool = True) -> None:
        super().__init__()

        def held(backend, plan, tiles, settings, device):
            return tiles.prod(axis=1).astype(float) * knows

        def unfit(backend, kernel, device, measured):
            spills = kernel.resources["spills"]
            if spills > SPILLED:
                return "nearly all its registers spill"
            return "its registers spill" if spills and not measured else None

        self.backend = type("Backend", (type(INTERPRETED),), {"held": held, "unfit": unfit})()
        begin = self.builder.begin

        def spilling(chain, schedule, *rest):
            building = begin(chain, schedule, *rest)
            size = math.prod(schedule.tile(a.name) for a in chain.axes)
            make = building.kernel
            object.__setattr__(
                building, "kernel",
                lambda: replace(make(), resources={"spills": bytes_of(max(0.0, size - limit))}),
            )  # fmt: skip
            return building

        object.__setattr__(self.builder, "begin", spilling)


def size(best: Best | None) -> int:
    assert best is not None
    return math.prod(best.tiles.values())


def test_what_holds_as_much_as_what_spilled_is_not_tried(found) -> None:
    """The first ones by the model are all large; where nothing is known of that, all are tried."""
    first, second, third, fourth = (math.prod(c[1:-1]) for c in ranked(found)[:4])
    assert first > second == third > fourth
    for knows, refused in ((True, 2), (False, 3)):
        failed, bench = Counter[str](), Spilling(fourth, knows)
        object.__setattr__(bench.builder, "workers", 1)
        assert size(choose(found, bench, failed)) == fourth
        assert failed == {"its registers spill": refused}


def test_where_all_spill_the_one_that_spills_the_least_is_chosen(found) -> None:
    failed, bench = Counter[str](), Spilling(0, knows=False)
    best = choose(found, bench, failed)
    assert size(best) == min(math.prod(c[1:-1]) for c in ranked(found)[:ATTEMPTS])
    assert best is not None and best.kernel.resources["spills"] == bytes_of(size(best))
    assert best.trials == len(found) == failed["its registers spill"] <= ATTEMPTS


def test_the_least_that_spills_too_much_is_not_chosen(found, monkeypatch) -> None:
    assert choose(found, Spilling(-LARGE, knows=False)) is None
    monkeypatch.setattr(choice, "disproof", lambda *given: "it is wrong where it was interpreted")
    assert choose(found, Spilling(0, knows=False)) is None


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


@pytest.mark.parametrize(("late", "built"), [(0.0, CHOICES), (math.inf, 12)])
def test_where_no_time_is_left_a_few_are_tried_and_for_a_while_others(
    late: float, built: int, found, monkeypatch
) -> None:
    """All of the first ones may spill their registers."""
    monkeypatch.setattr(choice, "LATE", late)
    bench = Bench(unfit=1000)
    assert choose(found, bench, deadline=time.monotonic() - 1.0) is None
    assert bench.built == built and built <= len(found) <= ATTEMPTS


def test_where_time_is_over_few_builders_try_as_many(found, monkeypatch) -> None:
    monkeypatch.setattr(choice, "LATE", 0.0)
    bench = Bench(unfit=CHOICES - 1)
    object.__setattr__(bench.builder, "workers", 1)
    best = choose(found, bench, deadline=time.monotonic() - 1.0)
    assert place(found, best) == CHOICES - 1


class Slow(Bench):
    """Builds kernels that are done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way, self.abandoned = list[Pending](), 0
        begin = self.builder.begin

        def pending(*given):
            self.under_way.append(Pending(begin(*given).kernel()))
            return self.under_way[-1]

        object.__setattr__(self.builder, "begin", pending)
        object.__setattr__(self.builder, "abandon", self._abandon)
        object.__setattr__(self.builder, "workers", CHOICES)
        object.__setattr__(self.builder, "longest", 0.2)

    def _abandon(self) -> None:
        self.abandoned += 1


@dataclass(frozen=True)
class Pending:
    """A kernel that is done with `done`."""

    made: Kernel
    done: Future[None] = field(default_factory=Future)

    def kernel(self) -> Kernel:
        return self.made


def place(found: Candidates, best: Best | None) -> int | None:
    """The place that the model gave a choice; None where there was none."""
    if best is None:
        return None
    rows = [(found.plan(c), found.settings(c)) for c in ranked(found)[:CHOICES]]
    return rows.index(((best.plan, best.tiles), best.settings))


def test_nobody_waits_for_kernels_behind_the_one_that_is_chosen(found) -> None:
    bench = Slow()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(choose, found, bench)
        while len(bench.under_way) < CHOICES:
            time.sleep(0.001)
        bench.under_way[1].done.set_result(None)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)  # the first may still be built
        bench.under_way[0].done.set_result(None)
        assert place(found, waiting.result()) == 0
    assert bench.abandoned == 1 and not bench.under_way[2].done.done()


def test_where_time_is_over_the_first_that_is_built_is_chosen(found, monkeypatch) -> None:
    monkeypatch.setattr(choice, "LATE", 0.01)
    bench = Slow()
    begin = bench.builder.begin

    def third_done(*given):
        building = begin(*given)
        if len(bench.under_way) == 3:
            building.done.set_result(None)
        return building

    object.__setattr__(bench.builder, "begin", third_done)
    assert place(found, choose(found, bench, deadline=time.monotonic() - 1.0)) == 2
    assert bench.abandoned == 1


def test_what_is_never_built_is_not_chosen(found, monkeypatch) -> None:
    monkeypatch.setattr(choice, "LATE", 0.01)
    failed: Counter[str] = Counter()
    assert choose(found, Slow(), failed, deadline=time.monotonic() - 1.0) is None
    assert failed == {NO_TIME: CHOICES}


class Foresighted(Bench):
    """Builds kernels ahead."""

    def __init__(self, unfit: int = 0) -> None:
        super().__init__(unfit=unfit)
        self.early = list[tuple]()
        object.__setattr__(self.builder, "workers", CHOICES)
        object.__setattr__(self.builder, "ahead", lambda *given: self.early.append(given))
        object.__setattr__(self.builder, "foreseen", lambda name: bool(self.early))


def test_what_the_model_prefers_is_begun_ahead_and_tried_alone(found) -> None:
    bench = Foresighted()
    begin_ahead(CHAIN, found, (), bench, "kernel")
    assert len(bench.early) == 1
    first = ranked(found)[0]
    plan, tiles = found.plan(first)
    assert bench.early[0] == (CHAIN, plan.schedule(tiles), "kernel", found.settings(first))
    assert place(found, choose(found, bench)) == 0
    assert bench.built == 1


def test_where_what_was_begun_ahead_does_not_fit_the_others_are_tried(found, monkeypatch) -> None:
    monkeypatch.setattr(choice, "LATE", 0.0)
    bench = Foresighted(unfit=2)
    begin_ahead(CHAIN, found, (), bench, "kernel")
    best = choose(found, bench)
    assert place(found, best) == 2 and bench.built == 1 + CHOICES
    late = Foresighted(unfit=1000)
    begin_ahead(CHAIN, found, (), late, "kernel")
    assert choose(found, late, deadline=time.monotonic() - 1.0) is None
    assert late.built == 1 + CHOICES, "not one twice"


def test_nothing_is_begun_ahead_that_cannot_be_written_or_is_not_there(found) -> None:
    bench = Foresighted()

    def refuse(*given):
        raise Illegal("it has no text")

    begin_ahead(CHAIN, replace(found, rows=found.rows[:0]), (), bench, "kernel")
    object.__setattr__(bench.builder, "ahead", refuse)
    begin_ahead(CHAIN, found, (), bench, "kernel")
    assert not bench.early
