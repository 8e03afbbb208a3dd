"""Tuning one chain: from the space to a kernel that is right, and back from the cache."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mcfuser.backend import Names
from mcfuser.backends import backend_of
from mcfuser.backends.cpu.backend import CpuBackend
from mcfuser.chain import attention, from_json, gemm, to_json
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE, device_named
from mcfuser.measure.request import Measured
from mcfuser.measure.worker import Worker
from mcfuser.process.child import NO_TIME
from mcfuser.tune import choice as choice_module
from mcfuser.tune import key as cache_key
from mcfuser.tune import search as search_module
from mcfuser.tune import tuning as tuning_module
from mcfuser.tune.budget import Budget
from mcfuser.tune.progress import Progress
from mcfuser.tune.tuned import MemoryCache, NoCandidate, Tuned, TuneOptions, kernel_name, names_of
from mcfuser.tune.tuner import begin_ahead, kept_kernel, kernel_of, key_of, tune
from mcfuser.tune.tuning import MISTRUSTED
from tests.support.chains import other
from tests.support.workers import Away, StandIn

CPU = device_named("cpu")
BACKEND = backend_of(CPU)
H200 = CATALOGUE["nvidia/h200"]
SMALL = gemm(2, 32, 32, 16, 16)
HALF = gemm(1, 32, 32, 32, 32, "float16")
ELSEWHERE = from_json({
    "axes": {"m": 16, "n": 32}, "tensors": {"A": {"shape": ["m", "n"]}},
    "operators": ["S[m] = sum[n] A[m, n]", "Y[m] = A[m, 0] - S[0]"],
})  # fmt: skip
"""A chain that is no one kernel: S is read at another position than it is computed."""
KEPT = MemoryCache()


@pytest.fixture(scope="module")
def device() -> Iterator[Worker]:
    """One process that measures, for all tests that ask whether a kernel is right."""
    backend = CpuBackend()
    backend.runner = "tests.support.hasty_cpu"
    with Worker(backend, CPU, limit=3600.0) as running:
        yield running


@pytest.fixture(scope="module")
def small(device: Worker) -> Tuned:
    return tune(SMALL, CPU, MemoryCache(), TuneOptions(trials=8, timeout=3600.0), worker=device)


def test_a_chain_is_measured_and_right(device: Worker) -> None:
    told: list[Progress] = []
    tuned = tune(SMALL, CPU, MemoryCache(), TuneOptions(trials=10), told.append, device)
    assert tuned.measured is not None and tuned.measured > 0
    assert tuned.error is not None and tuned.error < 1e-5
    assert 0 < tuned.trials <= 10
    rules = ["rule1", "rule2", "rule3", "rule4"]
    assert list(tuned.stages) == ["space", *rules, "distinct", "lowered"]
    assert f"def {kernel_name(tuned.key)}(" in tuned.source
    first, last = told[0], told[-1]
    assert {p.stage for p in told} == {"measure"}
    assert (first.done, first.compiled, first.best) == (0, 0, None) and first.total > 0
    assert last.done == tuned.trials <= last.compiled and last.best is not None
    assert last.failed == sum(tuned.failed.values())


def test_the_cache_answers_and_names_do_not_matter(device: Worker, small: Tuned) -> None:
    cache = MemoryCache({small.key: small})
    document = json.loads(
        json.dumps(to_json(SMALL)).replace('"A', '"Left').replace(" A[", " Left[")
    )
    renamed = from_json(document)
    assert renamed != SMALL
    assert tune(renamed, CPU, cache, TuneOptions(trials=8, timeout=3600.0)) is small
    again = device.measure(renamed, [[kernel_of(BACKEND, small, renamed)]], 3)[0]
    assert again.failed is None


def test_axes_may_be_renamed_too(device: Worker, small: Tuned) -> None:
    text = json.dumps(to_json(SMALL))
    for old, new in (('"m"', '"p"'), (" m,", " p,")):
        text = text.replace(old, new)
    renamed = from_json(json.loads(text))
    assert renamed.key == SMALL.key
    again = device.measure(renamed, [[kernel_of(BACKEND, small, renamed)]], 0)[0]
    assert again.failed is None


def test_a_tuned_kernel_survives_json(small: Tuned) -> None:
    assert Tuned.from_json(json.loads(json.dumps(small.to_json()))) == small


@pytest.mark.parametrize(
    "damage",
    [{"format": 6}, {"format": None}, {"source": ""}, {"checksum": "0"}, {"measured": "fast"},
     {"binary": "AAAA"}, {"from_the_future": 1}, {"budget": {}}, {"made": 3}, {"chain": []}],
)  # fmt: skip
def test_a_document_of_another_form_is_told(damage) -> None:
    tuned = tune(SMALL, CPU, KEPT, TuneOptions(trials=2), worker=Bench(0))
    with pytest.raises((KeyError, TypeError, ValueError)):
        Tuned.from_json(tuned.to_json() | damage)
    for name in tuned.to_json():
        with pytest.raises((KeyError, TypeError, ValueError)):
            Tuned.from_json({k: v for k, v in tuned.to_json().items() if k != name})


def test_the_key_tells_devices_and_spaces_apart() -> None:
    keys = {
        key_of(chain, device, options).digest
        for chain in (SMALL, gemm(2, 32, 32, 16, 32))
        for device in (CPU, H200)
        for options in (TuneOptions(), TuneOptions(space="chimera"))
    }
    assert len(keys) == 8
    assert key_of(SMALL, CPU, TuneOptions(seed=1)) == key_of(SMALL, CPU, TuneOptions(seed=2))


@pytest.mark.parametrize(
    "chain", [attention(4, 128, 128, 64, 64, "float16"), gemm(1, 64, 48, 80, 33)]
)
def test_a_gpu_that_is_not_at_hand_gets_a_cubin_chosen_by_the_model(chain) -> None:
    tuned = tune(chain, H200, MemoryCache(), TuneOptions())
    assert tuned.binary[:4] == b"\x7fELF"
    assert tuned.measured is None and tuned.error is None
    assert 0 < tuned.resources["registers"] <= 255
    assert tuned.resources["shared"] <= H200.fast
    assert tuned.resources["spills"] == 0
    assert "@triton.jit" in tuned.source


def test_a_search_that_was_cut_short_says_so_and_stops_no_larger_one() -> None:
    cache, bench = MemoryCache(), Bench(0)

    def again(trials: int | None) -> Tuned:
        return tune(SMALL, CPU, cache, TuneOptions(trials=trials), worker=bench)

    one = again(1)
    assert (one.budget.ended, one.trials, one.missed) == ("trials", 1, "")
    assert again(1) is one
    more = again(4)
    assert more.trials > 1 and more.key == one.key
    assert cache.get(one.key) is more
    measured = len(bench.alone)
    assert again(2) is again(1) is more and len(bench.alone) == measured
    most = again(None)
    assert most.budget.ended == "settled" and len(bench.alone) > measured


def test_a_search_without_time_says_so_and_stops_no_longer_one(monkeypatch) -> None:
    cache, bench = MemoryCache(), Bench(0)

    def again(timeout: float) -> Tuned:
        return tune(SMALL, CPU, cache, TuneOptions(timeout=timeout), worker=bench)

    with monkeypatch.context() as patch:  # time is over once something was measured
        over = property(lambda self: bool(bench.alone))
        patch.setattr(search_module.CandidateSearch, "late", over)
        patch.setattr(tuning_module.Tuning, "_late", lambda self: bool(bench.alone))
        short = again(600.0)
    assert short.budget == Budget(None, 600.0, "time") and short.measured is not None
    measured = len(bench.alone)
    assert again(600.0) is short is again(6.0) and len(bench.alone) == measured
    long = again(700.0)
    assert long.budget.ended == "settled" and len(bench.alone) > measured
    assert again(6000.0) is long


@pytest.mark.parametrize("faster", [0, 1])
def test_the_faster_of_the_kept_kernel_and_the_larger_search_s_stays(faster: int) -> None:
    cache = MemoryCache()
    one = tune(SMALL, CPU, cache, TuneOptions(trials=1), worker=Bench(0))
    marked = replace(one, source=one.source + "    # kept\n")
    cache.put(marked)
    more = tune(SMALL, CPU, cache, TuneOptions(trials=12), worker=Bench(faster))
    assert ("# kept" in more.source) == (faster == 0)
    assert more.budget.trials == 12 and cache.get(one.key) is more


def test_the_kept_kernel_stays_where_the_larger_search_finds_nothing() -> None:
    cache = MemoryCache()
    one = tune(SMALL, CPU, cache, TuneOptions(trials=1), worker=Bench(0))
    assert tune(SMALL, CPU, cache, TuneOptions(trials=8), worker=Bench(None)) is one
    assert cache.get(one.key) is one


def test_retune_searches_again_and_replaces() -> None:
    cache = MemoryCache()
    first = tune(SMALL, CPU, cache, TuneOptions(trials=8), worker=Bench(0))
    bench = Bench(1)
    again = tune(SMALL, CPU, cache, TuneOptions(trials=8, retune=True), worker=bench)
    assert bench.alone and again is not first and cache.get(first.key) is again
    with pytest.raises(NoCandidate):
        tune(SMALL, CPU, cache, TuneOptions(trials=8, retune=True), worker=Bench(None))
    assert cache.get(first.key) is again


def test_what_has_changed_since_a_kernel_was_kept_is_told(monkeypatch) -> None:
    cache = MemoryCache()
    old = tune(SMALL, CPU, cache, TuneOptions(trials=4), worker=Bench(0))
    monkeypatch.setattr(cache_key, "sources", lambda kind: "edited")
    new = tune(SMALL, CPU, cache, TuneOptions(trials=4), worker=Bench(0))
    assert new.key != old.key and new.missed == "the nearest kept kernel differs in sources"


@pytest.mark.parametrize("damage", [{"launch": {}}, {"source": "def kernel(): ..."}])
def test_a_kept_kernel_that_cannot_be_called_is_searched_again(damage) -> None:
    cache = MemoryCache()
    first = tune(SMALL, CPU, cache, TuneOptions(trials=4), worker=Bench(0))
    cache.put(replace(first, **damage))
    again = tune(SMALL, CPU, cache, TuneOptions(trials=4), worker=Bench(0))
    assert again.missed.startswith("the kept kernel cannot be read: ")
    assert again.launch == first.launch and cache.get(first.key) is again


def test_the_kept_source_is_what_is_measured_and_installed() -> None:
    """None is generated for it."""
    tuned = tune(SMALL, CPU, MemoryCache(), TuneOptions(trials=4), worker=Bench(0))
    marked = replace(tuned, source=tuned.source + "    # kept\n", lowering={}, expression="")
    made, _, _ = other(SMALL)
    assert kernel_of(BACKEND, marked, made).source == marked.source
    shapes = {n: (1, *made.shape(n)) for n in (*made.inputs, *made.outputs)}
    names = Names(*names_of(tuned, made))
    installed = BACKEND.function(kept_kernel(tuned), made, names, "chain_1", shapes, {})
    assert installed.primfunc is not None
    with pytest.raises(ValueError, match="is none of chain"):
        kernel_of(BACKEND, tuned, gemm(2, 32, 32, 16, 32))


class Bench(StandIn):
    """Measures by arithmetic: the first candidate is the fastest alone, and interleaved the `best`
    of the finalists, or none, has seconds."""

    def __init__(self, best: int | None) -> None:
        super().__init__(CPU)
        self.best = best
        self.alone: list[float] = []

    def measure(self, chain, programs, seed, together=False, **more) -> list[Measured]:
        if not together:
            seconds = [1e-3 + 1e-5 * (len(self.alone) + i) for i in range(len(programs))]
            self.alone += seconds
            return [Measured(s, 1e-7, None) for s in seconds]
        failed = Measured(None, None, "it crashed")
        return [Measured(2e-3, 2e-7, None) if i == self.best else failed
                for i in range(len(programs))]  # fmt: skip


@pytest.mark.parametrize("best", [0, 2])
def test_a_finalist_that_fails_when_interleaved_is_not_kept(best: int) -> None:
    tuned = tune(SMALL, CPU, MemoryCache(), TuneOptions(trials=8), worker=Bench(best))
    assert (tuned.measured, tuned.error) == (2e-3, 2e-7)


def test_a_search_whose_finalists_all_fail_has_no_kernel() -> None:
    """They were right on other inputs, and are wrong all the same."""
    with pytest.raises(NoCandidate, match="as a finalist, it crashed"):
        tune(SMALL, CPU, MemoryCache(), TuneOptions(trials=8), worker=Bench(None))


def test_where_every_candidate_fails_the_reasons_are_counted(device: Worker) -> None:
    document = {
        "axes": {"m": 32, "n": 32, "k": 16},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}},
        "operators": [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "D[m, n] = log(-1.0 - C[m, n] * C[m, n])",
        ],
    }
    with pytest.raises(NoCandidate, match="the chain is not defined on the inputs that were drawn"):
        tune(from_json(document), CPU, MemoryCache(), TuneOptions(trials=2), worker=device)


UNUSUAL = {
    "labels": {
        "axes": {"m": 16, "n": 64, "k": 16},
        "tensors": {"X": {"shape": ["m", "k"]}, "W": {"shape": ["k", "n"], "constant": True},
                    "t": {"shape": ["m"], "dtype": "int32"}},
        "operators": ["S[m, n] = sum[k] X[m, k] * W[k, n]", "R[m] = max[n] S[m, n]",
                      "Z[m] = sum[n] exp(S[m, n] - R[m])",
                      "T[m] = sum[n] select(n == t[m], S[m, n], 0.0)",
                      "L[m] = R[m] + log(Z[m]) - T[m]"],
    },
    "run-time extents": {
        "axes": {"m": [1, 32], "n": [3, 48], "k": 16},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]", "R[m] = max[n] C[m, n]",
                      "Z[m] = sum[n] exp(C[m, n] - R[m])"],
    },
    "an extent that no shape shows": {
        "axes": {"m": [1, 32], "n": 48}, "tensors": {"A": {"shape": ["n"]}},
        "operators": ["Y[m] = sum[n] A[n] * m"],
    },
    "logarithms, roots and powers": {
        "axes": {"m": 16, "n": 32}, "tensors": {"A": {"shape": ["m", "n"]}},
        "operators": ["Y[m] = sum[n] log(A[m, n]) * sqrt(A[m, n]) + pow(A[m, n], 1.7)"],
    },
    "infinities": {
        "axes": {"m": 16, "n": 32}, "tensors": {"A": {"shape": ["m", "n"]}},
        "operators": ["Y[m, n] = log(abs(A[m, n]) * (n < m))"],
    },
    "maxima of negative products": {
        "axes": {"m": 4, "n": 600}, "tensors": {"X": {"shape": ["m", "n"]},
                                                "y": {"shape": ["m", "n"]}},
        "operators": ["R[m] = max[n] X[m, n]", "Y[m] = max[n] exp(X[m, n] - R[m]) * y[m, n]"],
    },
    "a sum that grows": {
        "axes": {"m": 4, "n": 600}, "tensors": {"X": {"shape": ["m", "n"]}},
        "operators": ["R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(R[m] - X[m, n])"],
    },
    "bfloat16": {
        "axes": {"m": 8, "n": 40}, "tensors": {"X": {"shape": ["m", "n"], "dtype": "bfloat16"}},
        "operators": ["Z[m] = sum[n] exp(X[m, n])"],
    },
    "a packed bfloat16 weight": {
        "axes": {"m": 16, "k": 32, "n": 40},
        "tensors": {"A": {"shape": ["m", "k"], "dtype": "bfloat16"},
                    "B": {"shape": ["k", "n"], "dtype": "bfloat16", "constant": True}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_chains_have_kernels_that_are_right(name: str, device: Worker) -> None:
    chain = from_json(UNUSUAL[name])
    tuned = tune(chain, CPU, MemoryCache(), TuneOptions(trials=2), worker=device)
    assert tuned.error is not None and tuned.error < 2e-2
    assert not [why for why in tuned.failed if "ran longer" not in why], tuned.failed


def test_a_reduction_read_elsewhere_is_no_one_kernel() -> None:
    with pytest.raises(NoCandidate, match="'S' needs a kernel of its own"):
        tune(ELSEWHERE, CPU, MemoryCache(), TuneOptions(trials=4))


def test_where_no_time_is_left_the_model_chooses_a_kernel_that_is_right(device: Worker) -> None:
    cache = MemoryCache()
    tuned = tune(SMALL, CPU, cache, TuneOptions(), deadline=time.monotonic())
    assert (tuned.measured, tuned.error, tuned.trials) == (None, None, 1)  # one was built
    assert tuned.seconds == tuned.predicted > 0
    again = tune(SMALL, CPU, cache, TuneOptions(), worker=Bench(0))
    assert again.measured is not None and cache.get(tuned.key) is again
    assert tune(SMALL, CPU, cache, TuneOptions(), deadline=time.monotonic()) is again
    assert device.measure(SMALL, [[kernel_of(BACKEND, tuned, SMALL)]], 0)[0].failed is None


def test_the_model_chooses_nothing_that_was_found_wrong() -> None:
    class Wrong(Bench):
        """The time is over once some candidates were found wrong."""

        def measure(self, chain, programs, seed, together=False, **more) -> list[Measured]:
            ended.append(len(programs))
            return [Measured(None, None, "its error is 1") for _ in programs]

    ended: list[int] = []
    right = tune(SMALL, CPU, MemoryCache(), TuneOptions(), deadline=time.monotonic())
    with pytest.MonkeyPatch.context() as patch:
        over = property(lambda self: bool(ended))
        patch.setattr(search_module.CandidateSearch, "late", over)
        patch.setattr(tuning_module.Tuning, "_late", lambda self: bool(ended))
        # The candidates predicted best are measured first, and there is time to choose from them.
        patch.setattr(search_module, "HURRY", math.inf)
        patch.setattr(choice_module, "ATTEMPTS", choice_module.CHOICES)
        with pytest.raises(NoCandidate, match="its error is 1"):
            tune(SMALL, CPU, MemoryCache(), TuneOptions(), worker=Wrong(0))
    assert ended and right.measured is None


@pytest.mark.parametrize("wrong", [0, MISTRUSTED - 1, MISTRUSTED])
def test_the_model_chooses_no_other_kernel_where_all_that_ran_were_wrong(wrong: int) -> None:
    """What many have in common may be what is wrong; a few, and those that failed otherwise, say
    nothing of the others."""

    class Failing(Bench):
        def measure(self, chain, programs, seed, together=False, **more) -> list[Measured]:
            first = sum(ended)
            ended.append(len(programs))
            return [Measured(None, None, "its error is 1", wrong=first + i < wrong)
                    for i in range(len(programs))]  # fmt: skip

    ended: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        over = property(lambda self: sum(ended) >= MISTRUSTED)
        patch.setattr(search_module.CandidateSearch, "late", over)
        patch.setattr(tuning_module.Tuning, "_late", lambda self: sum(ended) >= MISTRUSTED)
        options = TuneOptions()
        if wrong >= MISTRUSTED:
            with pytest.raises(NoCandidate, match="its error is 1"):
                tune(SMALL, CPU, MemoryCache(), options, worker=Failing(0))
        else:
            assert tune(SMALL, CPU, MemoryCache(), options, worker=Failing(0)).measured is None
    assert sum(ended) >= MISTRUSTED


class Foresighted(Away):
    """Records the names of the kernels that it begins ahead."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.early, ahead = list[str](), self.builder.ahead
        self.builder.ahead = lambda *given: (self.early.append(given[2]), ahead(*given))


def test_a_kernel_that_will_be_chosen_is_begun_ahead_unless_one_is_kept() -> None:
    cache, options, worker = MemoryCache(), TuneOptions(), Foresighted(H200)
    try:
        begin_ahead(HALF, H200, cache, options, worker)
        name = kernel_name(key_of(HALF, H200, options).digest)
        assert worker.early == [name] and worker.builder.foreseen(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache, "related", lambda *_: pytest.fail("looked up again"))
            begin_ahead(HALF, H200, cache, options, worker)
        assert worker.early == [name], "it is under way"
        tuned = tune(HALF, H200, cache, options, worker=worker)
        assert not worker.builder.foreseen(name) and tuned.trials == 1 and tuned.binary
        begin_ahead(HALF, H200, cache, options, worker)
        begin_ahead(ELSEWHERE, H200, cache, options, worker)
        assert worker.early == [name]
    finally:
        worker.stop()


def test_from_giving_up_on_there_is_no_kernel_but_a_cached_one(device: Worker) -> None:
    cache, past = MemoryCache(), time.monotonic() - 1.0
    with pytest.raises(NoCandidate, match="no time was left to choose one"):
        tune(SMALL, CPU, cache, TuneOptions(), deadline=past, give_up=past)
    kept = tune(SMALL, CPU, cache, TuneOptions(trials=4), worker=device)
    assert tune(SMALL, CPU, cache, TuneOptions(), deadline=past, give_up=past) is kept


def test_finalists_that_there_is_no_time_for_stand_by_their_search() -> None:
    class Late(Bench):
        def measure(self, chain, programs, seed, together=False, **more) -> list[Measured]:
            if together:
                return [Measured(None, None, NO_TIME) for _ in programs]
            return super().measure(chain, programs, seed, together, **more)

    tuned = tune(SMALL, CPU, MemoryCache(), TuneOptions(trials=8), worker=Late(0))
    assert tuned.measured == 1e-3, "the first candidate was the fastest"


def test_a_chain_without_inputs_has_a_kernel(device: Worker) -> None:
    document = {
        "axes": {"m": 4, "n": 6},
        "tensors": {"Y": {"shape": ["m", "n"], "dtype": "bool"}},
        "operators": ["Y[m, n] = n <= m"],
    }
    options = TuneOptions(trials=2)
    assert tune(from_json(document), CPU, MemoryCache(), options, worker=device).error == 0.0


def test_a_condition_that_the_compiler_knows_becomes_a_number(device: Worker) -> None:
    """In a vector loop TVM would fold it to a constant that is no vector."""
    document = {
        "axes": {"m": 11, "n": 1},
        "operators": [
            "S[m] = sum[n] float32(m <= n + 0 and n - m < 3)",
            "V[m] = max[n] abs(float32(m <= n + 0 and n - m < 3)) / (abs(S[m]) + 0.5)",
        ],
        "tensors": {},
    }
    tuned = tune(from_json(document), CPU, MemoryCache(), TuneOptions(trials=4), worker=device)
    assert not [why for why in tuned.failed if "compile" in why]


def test_a_kernel_that_the_model_chose_is_chosen_anew_with_other_constants() -> None:
    chain, cache = gemm(1, 64, 64, 32, 32, "float16"), MemoryCache()
    h200 = device_named("h200")
    slow = replace(h200, costs=tuple((n, c * 7) for n, c in h200.costs), readings=())

    def chosen(device: Device) -> Tuned:
        with Away(device) as bench:
            return tune(chain, device, cache, TuneOptions(), worker=bench)

    first = chosen(h200)
    assert first.measured is None and first.conditions == {"constants": h200.constants_key}
    assert chosen(h200) is first
    anew = chosen(slow)
    assert anew.predicted > first.predicted and anew.key == first.key
    assert anew.missed == "the model chose the kept kernel with other constants"
    assert cache.get(first.key) is anew and chosen(slow) is anew
    cache.put(replace(anew, measured=1e-6))
    assert chosen(h200).measured == 1e-6, "what was measured does not depend on constants"
