"""The search on a GPU, with a stand-in for the GPU: kernels are compiled, their times made up."""

from __future__ import annotations

import math
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from threading import Timer

import numpy as np
import pytest

from mcfuser.backend import Kernel, Names
from mcfuser.backends.cuda import builder as cuda_builder
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import gemm, parts
from mcfuser.codegen.cuda.pool import Compilers, Pending
from mcfuser.codegen.triton import TritonSource, from_record, generate, to_record
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.measure.request import Measured
from mcfuser.measure.worker import Worker
from mcfuser.search.evolve import SearchResult
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.prune import distinct, parted, prune, space
from mcfuser.space.statement import Illegal
from mcfuser.tune import search as searching
from mcfuser.tune import tuning
from mcfuser.tune.progress import Note, Progress, unheard
from mcfuser.tune.related import TRUSTED
from mcfuser.tune.search import HURRY, LATE, CandidateSearch, in_flight
from mcfuser.tune.tuned import MemoryCache, NoCandidate, Tuned, TuneOptions, names_of
from mcfuser.tune.tuner import compare, kept_kernel, kernel_of, tune
from tests.support.chains import other
from tests.support.compiled import Remembering
from tests.support.workers import Away, StandIn

H200 = CATALOGUE["nvidia/h200"]
CHAIN = gemm(1, 64, 64, 32, 64, "float16")


class Bench(StandIn):
    """A GPU on which a kernel takes as long as its text and its registers say; some are wrong."""

    def __init__(self) -> None:
        super().__init__(H200)
        self.asked: list[tuple[int, bool]] = []
        self.on: list[tuple[int, bool, dict[str, float], bool]] = []

    def measure(
        self, chain, programs, seed, together=False, deadline=None, offsets=(), varied=False,
        extents=(), baseline=None, batch=16,
    ):  # fmt: skip
        self.asked.append((len(programs), together))
        self.on.append((seed, together, dict(offsets), varied))
        return [self._one(p) for p in programs]

    def _one(self, program) -> Measured:
        registers = sum(k.resources["registers"] for k in program)
        if registers % 7 == 0:
            return Measured(None, None, "its error is 1e+00, more than 1e-02")
        return Measured(1e-6 * registers, 1e-4, None, (), {"sm_mhz": 1980})


def every() -> Candidates:
    """The candidates of CHAIN."""
    pruned = parted(distinct(prune(space(CHAIN), H200)[0]), H200)
    return candidates(pruned, KnobTable(CUDA.knobs, H200), CUDA.feasible)


def source(kernel: Kernel) -> TritonSource:
    """How a kernel is launched."""
    names = {t.name: t.name for t in kernel.chain.tensors}
    return from_record(kernel.launch, kernel.source, names, {a.name: a.name for a in CHAIN.axes})


def tuned(worker: Worker, **options) -> Tuned:
    """The chain, tuned by a worker that is not needed any more."""
    with worker:
        return tune(CHAIN, H200, MemoryCache(), TuneOptions(**options), worker=worker)


@pytest.fixture(scope="module")
def bench():
    made = Bench()
    yield made
    made.stop()


def test_the_search_measures_few_and_times_finalists_together(bench) -> None:
    failed: Counter[str] = Counter()
    told: list[Progress | Note] = []
    search = CandidateSearch(
        CHAIN, every(), bench, "kernel", 0, 16, math.inf, {}, failed,
        told.append,
    )  # fmt: skip
    best = search.run()
    assert best is not None and best.trials <= 16 < best.candidates
    times = [r.seconds for r in search.results.values() if r.seconds is not None]
    assert best.result.seconds == min(times)
    assert bench.asked[-1][1] and 1 < bench.asked[-1][0] <= 4
    last = told[-1]
    assert isinstance(last, Progress) and 0 < last.done <= 16 and last.total == best.candidates
    assert last.best == min(times) and last.failed == failed.total()
    text = generate(best.plan.schedule(best.tiles), "kernel", best.settings, True).text
    assert text == best.kernel.source
    (winner,) = (c for c, kernel in search.kernels.items() if kernel is best.kernel)
    at = search.candidates.rows.tolist().index(list(winner))
    assert best.predicted == pytest.approx(search.times[at])


def test_a_tuned_kernel_is_measured_kept_and_made_again(bench) -> None:
    cache = MemoryCache()
    kernel = tune(CHAIN, H200, cache, TuneOptions(trials=8), worker=bench)
    assert kernel.measured is not None and kernel.error == 1e-4
    assert kernel.conditions == {"sm_mhz": 1980}
    assert kernel.binary[:4] == b"\x7fELF"
    assert "lowered" in kernel.stages
    assert Tuned.from_json(kernel.to_json()) == kernel
    again = kernel_of(CUDA, kernel, CHAIN)
    assert again.source == kernel.source and again.binary == kernel.binary
    before = len(bench.asked)
    assert tune(CHAIN, H200, cache, TuneOptions(trials=8), worker=bench) is kernel
    assert len(bench.asked) == before


def test_the_kept_binary_is_launched_as_it_was_measured(bench) -> None:
    """Nothing is generated again, and a chain with other names has it, too."""
    kernel = tune(CHAIN, H200, MemoryCache(), TuneOptions(trials=8), worker=bench)
    made, tensors, _ = other(CHAIN)
    old = replace(kernel, expression="", tiles={}, lowering={}, source="# an older one's")
    there, same = (source(kernel_of(CUDA, old, c)) for c in (made, CHAIN))
    assert there.parameters == tuple(tensors[n] for n in (*CHAIN.inputs, *CHAIN.outputs))
    assert there.text == old.source
    assert (there.grid, there.threads) == (same.grid, same.threads)
    shapes = {n: (1, *made.shape(n)) for n in (*made.inputs, *made.outputs)}
    names = Names(*names_of(old, made))
    installed = CUDA.function(kept_kernel(old), made, names, "chain_1", shapes, {})
    assert installed.binary is not None and installed.binary.cubin == kernel.binary
    assert installed.binary.name == same.name


@pytest.mark.parametrize("damage", [{"launch": {}}, {"resources": {}}])
def test_launches_that_cannot_be_read_are_a_miss(bench, damage) -> None:
    cache = MemoryCache()
    first = tune(CHAIN, H200, cache, TuneOptions(trials=8), worker=bench)
    cache.put(replace(first, **damage))
    again = tune(CHAIN, H200, cache, TuneOptions(trials=8), worker=bench)
    assert again.missed.startswith("the kept kernel cannot be read: ")
    assert again.launch == first.launch


@pytest.mark.thorough
def test_a_search_cut_short_on_a_gpu_is_made_longer(bench) -> None:
    chain, cache = gemm(1, 128, 128, 64, 64, "float16"), MemoryCache()
    first = tune(chain, H200, cache, TuneOptions(trials=8), worker=bench)
    assert first.budget.ended == "trials"
    more = tune(chain, H200, cache, TuneOptions(trials=12), worker=bench)
    assert more.trials > first.trials and cache.get(first.key) is more
    assert bench.asked[-1] == (2, True)  # both, interleaved
    measured = [t.measured for t in (first, more) if t.measured is not None]
    assert more.measured == min(measured)


def test_a_predicted_kernel_is_searched_again_where_the_gpu_is(bench) -> None:
    cache = MemoryCache()

    with Away(H200) as away:
        predicted = tune(CHAIN, H200, cache, TuneOptions(), worker=away)
        assert predicted.measured is None
        assert predicted.failed["no NVIDIA GPU is at hand"] == 1
        assert tune(CHAIN, H200, cache, TuneOptions(), worker=away) is predicted
    measured = tune(CHAIN, H200, cache, TuneOptions(trials=8), worker=bench)
    assert measured.measured is not None


@pytest.mark.thorough
def test_fused_and_unfused_are_timed_in_one_run(bench) -> None:
    cache = MemoryCache()
    fused = tune(CHAIN, H200, cache, TuneOptions(trials=8), worker=bench)
    alone = parts(CHAIN)
    pieces = [tune(p, H200, cache, TuneOptions(trials=8), worker=bench) for p in alone]
    unfused = list(zip(pieces, alone, strict=True))
    one, many = compare(bench, CHAIN, [[(fused, CHAIN)], unfused], 0).seconds
    assert bench.asked[-1] == (2, True)
    assert np.isfinite(one) and many != one


class Full(Bench):
    """A GPU that another process fills: at once, or after so many answers."""

    WHY = "NVIDIA H200 has 7 of its 143771 MiB left"

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def _one(self, program) -> Measured:
        self.room -= 1
        if self.room < 0:
            return Measured(None, None, self.WHY, unusable=True)
        return Measured(1e-6, 1e-4)


def test_on_a_full_gpu_the_model_chooses_and_says_why() -> None:
    full = Full(0)
    kernel = tuned(full, trials=8)
    assert kernel.measured is None and kernel.predicted > 0 and kernel.binary
    measured = sum(programs for programs, _ in full.asked)
    assert kernel.failed[Full.WHY] == measured <= 8, "one generation, and no more"


def test_a_gpu_that_fills_up_before_the_finals_leaves_the_first_figures() -> None:
    full = Full(8)
    kernel = tuned(full, trials=8)
    assert kernel.measured == 1e-6 and kernel.error == 1e-4


class Crashing(Remembering):
    """Compilers of which every third crashes."""

    asked = 0

    def outcome(self, pending, source, arch):
        self.asked += 1
        outcome = super().outcome(pending, source, arch)
        return Illegal("the compiler crashed") if self.asked % 3 == 1 else outcome


def test_a_compiler_that_crashes_is_counted_and_the_search_goes_on() -> None:
    crashing = Bench()
    crashing.builder.compilers = Crashing(2)
    kernel = tuned(crashing, trials=16)
    assert kernel.measured is not None
    assert kernel.failed["the compiler crashed"] >= 1


class Slow(Remembering):
    """Compilers whose every fourth source comes late: soon, or never. Nothing but those takes
    longer than is waited for, however busy the machine is."""

    def __init__(self, ever: bool) -> None:
        super().__init__(2)
        self.ever, self.asked = ever, 0
        self.held: list[TritonSource] = []
        self.prompt: list[Pending] = []

    @property
    def longest(self) -> int:
        only_late = all(pending.done() for pending in getattr(self, "prompt", ()))
        return 1 if only_late and not self.ever else 600

    @longest.setter
    def longest(self, seconds: int) -> None:
        pass

    def begin(self, source, arch):
        self.asked += 1
        if self.asked % 4:
            self.prompt.append(Future())  # or the one that is begun has but a second
            self.prompt[-1] = super().begin(source, arch)
            return self.prompt[-1]
        self.held.append(source)
        late: Pending = Future()
        if self.ever:
            made = super().outcome(super().begin(source, arch), source, arch)
            Timer(0.3, late.set_result, [made]).start()
        return late


@pytest.mark.thorough
@pytest.mark.parametrize("ever", [True, False])
def test_a_kernel_that_compiles_late_is_measured_or_counted(monkeypatch, ever: bool) -> None:
    monkeypatch.setattr(searching, "SLOWEST", 0.05 if not ever else 100.0)
    bench, failed = Bench(), Counter[str]()
    bench.builder.compilers = Slow(ever)
    search = CandidateSearch(CHAIN, every(), bench, "kernel", 0, 16, math.inf, {}, failed,
                    unheard)  # fmt: skip
    try:
        best = search.run()
    finally:
        bench.stop()
    held = bench.builder.compilers.held
    assert best is not None and held and not search.under_way
    assert failed[LATE] == (0 if ever else len(held))
    measured = [(k.source, k.launch) for k in search.kernels.values()]
    assert {(s.text, to_record(s)) in measured for s in held} == {ever}


def test_a_search_that_has_taken_long_ends_with_what_it_has(bench, monkeypatch) -> None:
    options = TuneOptions(seed=7, trials=32)
    for limit in ("COMPILING", "WAITING"):
        monkeypatch.setattr(cuda_builder, limit, 3600.0)
    long = tune(CHAIN, H200, MemoryCache(), options, worker=bench)
    monkeypatch.setattr(cuda_builder, "COMPILING", 0.0)
    short = tune(CHAIN, H200, MemoryCache(), options, worker=bench)
    assert in_flight(bench.builder.workers) <= short.trials < long.trials
    assert short.measured is not None


def test_a_few_candidates_are_waited_for_until_one_is_right(monkeypatch) -> None:
    """However many compilers are idle meanwhile."""
    monkeypatch.setattr(searching, "SLOWEST", 0.0)
    bench = Bench()
    bench.builder.compilers = Compilers(8)  # which remember nothing
    kernel = tuned(bench, trials=2)
    assert kernel.measured is not None and kernel.failed.get(LATE, 0) <= 1


def test_finalists_that_an_earlier_search_measured_are_waited_for(monkeypatch) -> None:
    """However few are left, and however soon one of them was right."""
    monkeypatch.setattr(searching, "SLOWEST", 0.0)
    bench, failed = Bench(), Counter[str]()
    bench.builder.compilers = Slow(ever=True)
    finalists = [tuple(row) for row in every().rows[:4].tolist()]
    known = dict.fromkeys(finalists, Measured(1e-6, 1e-4))
    search = CandidateSearch(CHAIN, every(), bench, "kernel", 0, 16, math.inf, {}, failed,
                    unheard, known)  # fmt: skip
    try:
        search._build_known(finalists)
    finally:
        bench.stop()
    assert bench.builder.compilers.held and failed[LATE] == 0
    assert {*search.results} == {*finalists} and not search.under_way


def test_where_all_are_wrong_on_other_inputs_some_that_compute_otherwise_are_tried(bench) -> None:
    """As where Winograd's algorithm is fast and not precise enough."""
    found = every()
    rows = found.rows.tolist()
    wrong = [tuple(r) for r in rows if found.settings(r).tma and found.settings(r).stages != 2][:6]
    known = dict.fromkeys(wrong, Measured(1e-6, 1e-4))
    search = CandidateSearch(CHAIN, found, bench, "kernel", 0, 16, math.inf, {}, Counter(),
                    unheard, known)  # fmt: skip
    others = search._otherwise()
    assert others and not {*others} & {*wrong}
    assert not any(found.settings(c).tma for c in search.results)
    seconds = [search.results[c].seconds for c in others]
    assert None not in seconds and seconds == sorted(seconds)
    late = replace(search, deadline=time.monotonic(), results={}, kernels={})
    assert late._otherwise() == []
    plain = next(r for r in rows if found.settings(r) == type(found.settings(r))())
    mixed = {**known, tuple(plain): Measured(1e-6, 1e-4)}
    assert replace(search, known=mixed, results={}, kernels={})._otherwise() == []


def test_a_chain_without_candidates_says_why_it_has_no_kernel(bench, monkeypatch) -> None:
    none = replace(every(), rows=every().rows[:0])
    monkeypatch.setattr(tuning, "listed", lambda *given, **more: none)
    with pytest.raises(NoCandidate, match="no tiles of its space suit a block"):
        tune(CHAIN, H200, MemoryCache(), TuneOptions(), worker=bench)


def test_time_that_is_over_waits_for_the_first_generation(monkeypatch) -> None:
    """And for no other: of what is begun later, what is slow is left."""
    monkeypatch.setattr(cuda_builder, "WAITING", 0.0)
    bench = Bench()
    bench.builder.compilers = Slow(ever=True)
    kernel = tuned(bench)
    opening = in_flight(bench.builder.workers)
    assert kernel.trials == opening > 4 and bench.builder.compilers.held


def test_a_search_that_is_due_is_spent_when_its_first_candidates_have_ended(
    bench, monkeypatch
) -> None:
    search = CandidateSearch(CHAIN, every(), bench, "kernel", 0, None, math.inf, {}, Counter(),
                             unheard)  # fmt: skip
    first, later = [(0,), (1,)], [(2,), (3,)]
    monkeypatch.setattr(search, "_begin", lambda some: dict.fromkeys(some, math.inf))
    for some in (first, later):
        search.measure(some, False)
    assert search.opening == first
    monkeypatch.setattr(search, "begun", -math.inf)
    assert not search.due and not search.spent, "nothing is right yet"
    search.results[later[0]] = Measured(1e-6, 1e-4)
    search.under_way = dict.fromkeys([first[1], later[1]])
    assert search.due and not search.spent
    del search.under_way[first[1]]
    assert search.spent


@pytest.mark.parametrize("seconds", [HURRY / 2, math.inf])
def test_a_search_in_a_hurry_begins_with_nothing_that_the_model_expects_to_be_slow(
    bench, monkeypatch, seconds: float
) -> None:
    """But with the best of all, and then with what was best for a related chain, if it is expected
    to take hardly longer here."""
    begun = []
    search = CandidateSearch(CHAIN, every(), bench, "kernel", 0, 4, time.monotonic() + seconds, {},
                             Counter(), unheard)  # fmt: skip
    times = search.times
    near, far = times <= TRUSTED * times.min(), times > TRUSTED * times.min()
    slow, quick = (search.candidates.candidate(np.flatnonzero(w)[-1]) for w in (far, near))
    best = search.candidates.candidate(np.argmin(times))
    search = replace(search, first=(slow, quick))
    monkeypatch.setattr(
        searching,
        "evolve",
        lambda *asked: begun.extend(asked[-1]) or SearchResult(None, math.inf, {}, True),
    )
    search.run()
    assert begun == ([best, quick] if seconds < HURRY else [slow, quick])


def test_a_search_in_which_nothing_is_right_yet_goes_on(monkeypatch) -> None:
    monkeypatch.setattr(cuda_builder, "COMPILING", 0.0)
    bench, wrong = Bench(), Measured(None, None, "its error is 1e+00, more than 1e-02")
    right = bench._one

    def late(program) -> Measured:
        return right(program) if len(bench.asked) > 12 else wrong

    bench._one = late
    kernel = tuned(bench)
    assert kernel.measured is not None and kernel.trials > 12


def test_inputs_are_announced_as_they_are_asked_for(bench, monkeypatch) -> None:
    told = list[tuple[int, bool, dict[str, float], bool]]()

    def announce(self, chain, seed, together, offsets, varied=False) -> None:
        told.append((seed, together, offsets, varied))

    monkeypatch.setattr(Bench, "announce", announce)
    before = len(bench.on)
    tune(CHAIN, H200, MemoryCache(), TuneOptions(trials=8, seed=5), worker=bench)
    assert told == [on for i, on in enumerate(bench.on) if i >= before and on not in bench.on[:i]]
