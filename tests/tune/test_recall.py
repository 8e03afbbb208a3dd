"""Which kept kernel serves a search, and which of two stays."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import from_text
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.measure.rounds import Interleaved
from mcfuser.tune.budget import Budget
from mcfuser.tune.key import cache_key
from mcfuser.tune.recall import better, recall, serves
from mcfuser.tune.tuned import MemoryCache, RetuneCache, Tuned, TuneOptions, Use
from tests.support.kernels import tuned

CHAIN = from_text("gemm:1,64,64,32,32")
KEY = cache_key(CHAIN.key, CATALOGUE["nvidia/h200"], "mcfuser", True, "knobs", CUDA)
LARGER = Budget(None, 60.0, "settled")
KEPT = replace(tuned(), key=KEY.digest, made=KEY)


def fine(kernel: Tuned, chain) -> None:
    assert chain.key == kernel.chain.key


def test_a_hit_and_an_empty_cache() -> None:
    cache = MemoryCache()
    assert recall(cache, KEY, CHAIN, fine) == (None, "")
    cache.put(KEPT)
    assert recall(cache, KEY, CHAIN, fine) == (KEPT, "")


def test_a_miss_names_what_differs_from_the_nearest() -> None:
    cache = MemoryCache()
    cache.put(KEPT)
    far = replace(KEY, knobs="others", sources="others", toolchain=())
    cache.put(replace(KEPT, key=far.digest, made=far))
    kept, why = recall(cache, replace(KEY, sources="changed"), CHAIN, fine)
    assert kept is None and why == "the nearest kept kernel differs in sources"


@pytest.mark.parametrize("error", [KeyError("launches"), TypeError("x"), ValueError("x")])
def test_a_kernel_that_cannot_be_launched_is_a_miss_with_a_reason(error: Exception) -> None:
    cache = MemoryCache()
    cache.put(KEPT)

    def broken(kernel: Tuned, chain) -> None:
        raise error

    kept, why = recall(cache, KEY, CHAIN, broken)
    assert kept is None and why.startswith("the kept kernel cannot be read: ")


def test_a_kernel_under_a_key_that_is_not_its_own_is_a_miss() -> None:
    cache = MemoryCache({KEY.digest: replace(KEPT, key="0" * 64)})
    assert recall(cache, KEY, CHAIN, fine)[0] is None


def test_a_prediction_serves_no_search_and_a_cut_search_no_larger_one() -> None:
    predicted = replace(KEPT, measured=None, budget=LARGER)
    assert serves(replace(predicted, measured=1e-6), TuneOptions()) and not serves(
        predicted, TuneOptions()
    )
    cut = replace(KEPT, trials=1, budget=Budget(1, 60.0, "trials"))
    assert serves(cut, TuneOptions(trials=1)) and not serves(cut, TuneOptions())


@pytest.mark.parametrize(
    ("times", "first"),
    [((1.0, 2.0), True), ((2.0, 1.0), False), ((float("inf"), 1.0), False),
     ((1.0, float("inf")), True), ((float("inf"), float("inf")), True)],
)  # fmt: skip
def test_the_faster_when_interleaved_stays_under_the_larger_budget(times, first: bool) -> None:
    old = replace(KEPT, trials=3, budget=Budget(3, 60.0, "trials"))
    new = replace(KEPT, source="def other(): ...", trials=40, budget=LARGER)
    kept = better(old, new, lambda some: Interleaved(times))

    assert kept.source == (old if first else new).source
    assert (kept.budget, kept.trials) == (LARGER, 40)


def test_without_the_device_the_prediction_decides_and_a_measurement_stays() -> None:
    def never(some) -> Interleaved:
        raise AssertionError("nothing can be timed")

    new = replace(KEPT, measured=None, source="new", budget=LARGER)
    assert better(KEPT, new, never).source == KEPT.source
    assert better(replace(KEPT, measured=None, predicted=1.0), new, never) is new
    assert better(replace(KEPT, measured=None), replace(KEPT, source="new"), never).source == "new"


def test_a_kernel_that_was_found_again_is_not_compared_with_itself() -> None:
    def never(some) -> Interleaved:
        raise AssertionError("both are the same")

    again = replace(KEPT, measured=1e-9, trials=40, budget=LARGER)
    kept = better(KEPT, again, never)
    assert (kept.measured, kept.budget, kept.trials) == (KEPT.measured, LARGER, 40)


def test_tuning_anew_sees_only_what_was_put_since() -> None:
    cache = MemoryCache()
    cache.put(KEPT)
    anew = RetuneCache(cache)
    assert recall(anew, KEY, CHAIN, fine) == (None, "")
    later = replace(KEPT, measured=1e-6)
    anew.put(later)
    anew.note([Use("k", "n", KEY.digest)])
    assert anew.get(KEY.digest) is cache.get(KEY.digest) is later
    assert cache.uses == {Use("k", "n", KEY.digest)}


def test_a_kernel_is_read_from_what_it_was_written_as_unless_that_is_damaged() -> None:
    document = json.loads(json.dumps(KEPT.to_json()))
    assert Tuned.from_json(document) == KEPT
    for name, value in (("trials", KEPT.trials + 1), ("binary", "AAAA"), ("checksum", "0")):
        with pytest.raises(ValueError, match="its checksum does not fit it: it was damaged"):
            Tuned.from_json(document | {name: value})
    with pytest.raises(ValueError, match="its format is 1, and 7 is read here"):
        Tuned.from_json(document | {"format": 1})
