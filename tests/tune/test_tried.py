"""Candidates that were measured are kept, and a search goes on from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.backends import backend_of
from mcfuser.chain import from_json as chain_from_json
from mcfuser.chain import gemm
from mcfuser.chain import to_json as chain_to_json
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.request import Measured
from mcfuser.process.child import NO_TIME
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.tune import tried as tried_module
from mcfuser.tune.expected import pruned
from mcfuser.tune.tried import (
    Tried,
    TriedLog,
    from_json,
    latest,
    results_of,
    to_json,
    tried,
)
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from mcfuser.tune.tuner import key_of, tune
from mcfuser_db import Storage
from tests.support.benches import CHAIN, HashBench, search_until_killed
from tests.support.db_storages import processes

CPU = device_named("cpu")
ESTIMATE = backend_of(CPU).estimate


def every() -> Candidates:
    space, _ = pruned(CHAIN, CPU, TuneOptions(), backend_of(CPU))
    table = KnobTable(backend_of(CPU).knobs, CPU)
    return candidates(space, table, backend_of(CPU).feasible)


RIGHT, WRONG = Measured(1e-6, 1e-7), Measured(None, None, "its error is 1, more than 1e-5")


def test_what_was_measured_becomes_rows_of_the_next_search_whatever_the_axes_are_called() -> None:
    rows = every()
    results = {rows.candidate(i): (RIGHT, WRONG)[i % 2] for i in range(0, len(rows), 7)}
    kept = from_json(json.loads(json.dumps(to_json(tried(CHAIN, rows, True, results, ESTIMATE)))))
    assert results_of(CHAIN, rows, True, kept) == results
    assert results_of(CHAIN, rows, False, kept) == {}, "a space without shifts is another one"
    words = json.dumps(chain_to_json(CHAIN))
    for old, new in (('"m"', '"p"'), (" m,", " p,"), ("[m,", "[p,")):
        words = words.replace(old, new)
    renamed = chain_from_json(json.loads(words))
    assert renamed.key == CHAIN.key and renamed != CHAIN
    shown = kept[0].named([a.name for a in renamed.axes])
    assert "p" in shown["tiles"] and "m" not in shown["tiles"]


def test_what_the_model_predicted_is_kept_and_an_older_document_has_no_prediction() -> None:
    rows = every()
    results = {rows.candidate(i): RIGHT for i in (0, len(rows) // 2)}
    document = to_json(tried(CHAIN, rows, True, results, ESTIMATE))
    expected = rows.estimates(rows.rows[[0, len(rows) // 2]], ESTIMATE).tolist()
    assert [t.predicted for t in from_json(document)] == expected
    assert from_json(document)[0].named(None)["predicted"] == expected[0]
    older = {**document, "tried": [row[:9] for row in document["tried"]]}
    assert [t.predicted for t in from_json(older)] == [None, None]


def test_results_that_say_nothing_of_a_candidate_are_not_kept() -> None:
    rows = every()
    some = [rows.candidate(i) for i in range(3)]
    odd = (Measured(None, None, NO_TIME), Measured(None, None, "gone", unusable=True), RIGHT)
    (one,) = tried(CHAIN, rows, True, dict(zip(some, odd, strict=True)), ESTIMATE)
    assert one.seconds == RIGHT.seconds


def test_a_candidate_of_another_space_or_a_damaged_one_is_left_out() -> None:
    rows = every()
    (one,) = tried(CHAIN, rows, True, {rows.candidate(0): RIGHT}, ESTIMATE)
    strange = [
        replace(one, expression="a9"), replace(one, expression="?"), replace(one, knobs={"x": 1}),
        replace(one, tiles=dict.fromkeys(one.tiles, 3)), replace(one, split="a7"),
        replace(one, seconds=None),
    ]  # fmt: skip
    assert results_of(CHAIN, rows, True, strange) == {}
    for damage in ({"knobs": None}, {"tried": [[1]]}, {"tried": [["a0", {"a0": "x"}] + [0] * 7]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            from_json({**to_json([one]), **damage})


def test_the_last_result_of_a_candidate_holds() -> None:
    one = Tried("a0", {"a0": 1}, None, 1, True, {}, 1e-6, 1e-7)
    assert latest([one, replace(one, parts=2), replace(one, seconds=2e-6)]) == [
        replace(one, seconds=2e-6),
        replace(one, parts=2),
    ]


def test_candidates_are_kept_some_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(tried_module, "PATIENCE", 3600.0)
    one, kept = Tried("a0", {}, None, 1, True, {}, 1e-6, 1e-7), list[Sequence[Tried]]()
    log = TriedLog(kept.append)
    for _ in range(tried_module.BATCH + 3):
        log.add([one])
    assert [len(k) for k in kept] == [tried_module.BATCH]
    log.flush()
    log.flush()
    assert [len(k) for k in kept] == [tried_module.BATCH, 3]
    monkeypatch.setattr(tried_module, "PATIENCE", 0.0)
    log.add([one])
    assert len(kept[-1]) == 1


def measured(cache: MemoryCache) -> list[tuple[object, ...]]:
    """The candidates that were kept, each as often as it was measured."""
    (all_of_them,) = cache.candidates.values()
    return [t.candidate for t in all_of_them]


def test_a_larger_search_measures_only_what_is_new() -> None:
    """But for finalists, which are built and checked in its own process."""
    cache = MemoryCache()
    small = tune(CHAIN, CPU, cache, TuneOptions(trials=12), worker=HashBench())
    first = measured(cache)
    assert len(set(first)) == len(first) == small.trials
    bench = HashBench()
    large = tune(CHAIN, CPU, cache, TuneOptions(), worker=bench)
    second = measured(cache)[len(first) :]
    assert 0 < len(second) == len(bench.alone)
    assert len(set(first) & set(second)) <= 4 and set(bench.varied) <= set(bench.alone)
    assert large.trials == len({*first, *second}) > small.trials
    assert large.measured is not None and large.measured <= (small.measured or 0)


def test_a_kept_time_is_no_reason_to_use_a_kernel_that_is_wrong_here() -> None:
    cache, bench = MemoryCache(), HashBench()
    best = tune(CHAIN, CPU, cache, TuneOptions(trials=12), worker=bench)
    cache.kept.clear()
    wary = HashBench()
    wary.wrong = {best.source}
    other = tune(CHAIN, CPU, cache, TuneOptions(trials=12), worker=wary)
    assert best.source in wary.alone and other.source != best.source
    assert other.source in wary.alone and other.source in wary.varied
    assert sum(other.failed.values()) > 0


def test_what_failed_is_not_tried_again_and_is_still_counted() -> None:
    cache = MemoryCache()
    first = HashBench()
    tune(CHAIN, CPU, cache, TuneOptions(trials=12), worker=first)
    bad = first.alone[:3]
    fresh, wary = MemoryCache(), HashBench()
    wary.wrong = set(bad)
    one = tune(CHAIN, CPU, fresh, TuneOptions(trials=12), worker=wary)
    fresh.kept.clear()
    after = HashBench()
    two = tune(CHAIN, CPU, fresh, TuneOptions(trials=12), worker=after)
    wrong = sum(source in wary.wrong for source in wary.alone)  # several may have one source
    assert not set(bad) & set(after.alone) and sum(one.failed.values()) == wrong >= 3
    assert two.failed == one.failed


def test_tuning_anew_measures_everything_anew() -> None:
    cache, second = MemoryCache(), HashBench()
    tune(CHAIN, CPU, cache, TuneOptions(trials=12), worker=HashBench())
    first = measured(cache)
    tune(CHAIN, CPU, cache, TuneOptions(trials=12, retune=True), worker=second)
    assert measured(cache) == first * 2 and len(second.alone) == len(first)
    key = key_of(CHAIN, CPU, TuneOptions())
    assert len(cache.tried(key.digest)) == len(first)


@pytest.mark.thorough
def test_a_search_that_was_killed_goes_on_from_what_it_had_measured(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    process = processes().Process(target=search_until_killed, args=(url, 8, 4))
    process.start()
    process.join()
    assert process.exitcode == -9
    key = key_of(CHAIN, CPU, TuneOptions()).digest
    with closing(Storage(url)) as store:
        kept = store.tried(key)
        assert 4 <= len(kept) <= 8 and store.kernel_count() == 0
        bench = HashBench()
        tuned = tune(CHAIN, CPU, store, TuneOptions(), worker=bench)
        new = len(store.tried(key)) - len(kept)
        assert tuned.trials == len(kept) + new
        assert new <= len(bench.alone) <= new + 4, "finalists are measured again"


def test_chains_that_differ_share_no_candidates() -> None:
    cache = MemoryCache()
    tune(CHAIN, CPU, cache, TuneOptions(trials=8), worker=HashBench())
    bench, other = HashBench(), gemm(2, 32, 32, 16, 32)
    tuned = tune(other, CPU, cache, TuneOptions(trials=8), worker=bench)
    assert tuned.trials == len(bench.alone)
