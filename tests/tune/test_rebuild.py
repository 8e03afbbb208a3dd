"""A kernel is made from a record only after it was built and checked here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mcfuser.devices.catalogue import CATALOGUE, device_named
from mcfuser.measure.request import Measured
from mcfuser.tune.budget import Budget
from mcfuser.tune.rebuild import (
    RIVALS,
    START,
    changed,
    rebuilt,
    record_of,
    vetted,
    wanted_key,
)
from mcfuser.tune.tuned import MemoryCache, NoCandidate, Tuned, TuneOptions
from mcfuser.tune.tuner import tune
from mcfuser.tune.tuning import Tuning
from tests.support.benches import CHAIN, HashBench
from tests.support.records import searched
from tests.support.workers import Away

CPU = device_named("cpu")


@pytest.fixture
def bench() -> Iterator[HashBench]:
    with HashBench() as made:
        yield made


def again(kept: Tuned, bench: HashBench) -> Tuned:
    return rebuilt(record_of(kept), CPU, bench, math.inf)


def test_the_same_kernel_is_made_checked_and_measured(bench: HashBench) -> None:
    kept = searched()
    made = again(kept, bench)
    assert (made.key, made.source, made.launch, made.tiles, made.expression) == (
        kept.key, kept.source, kept.launch, kept.tiles, kept.expression,
    )  # fmt: skip
    assert bench.alone == bench.varied == bench.together == [kept.source]
    assert (made.budget, made.trials) == (kept.budget, kept.trials)
    assert made.measured is not None and made.error is not None


def test_what_the_record_claims_is_not_believed(bench: HashBench) -> None:
    made = again(replace(searched(), measured=1e-12, error=0.0, predicted=1e-12), bench)
    assert made.measured != 1e-12 and made.error == 1e-7


def test_a_kernel_that_is_wrong_here_is_refused(bench: HashBench) -> None:
    bench.wrong = {searched().source}
    with pytest.raises(NoCandidate, match="its error is 1e"):
        again(searched(), bench)


@pytest.mark.parametrize(
    "strange",
    [{"tiles": {"m": 3, "n": 3, "k": 3, "h": 3}}, {"expression": "nmkh"}, {"lowering": {"rows": 1}},
     {"split": "k", "parts": 7}],
)  # fmt: skip
def test_a_schedule_that_is_not_searched_here_is_refused(strange, bench: HashBench) -> None:
    with pytest.raises(NoCandidate, match="none of those that are searched here"):
        again(replace(searched(), **strange), bench)
    assert not bench.alone


def test_a_kernel_for_another_device_is_refused(bench: HashBench) -> None:
    made = searched().made
    assert made is not None
    with pytest.raises(NoCandidate, match="it was tuned for another device, cpu/elsewhere"):
        again(replace(searched(), made=replace(made, device="cpu/elsewhere")), bench)


def test_a_kernel_of_other_versions_is_a_start_for_a_search(bench: HashBench) -> None:
    made = searched().made
    assert made is not None
    settled = replace(searched(), budget=Budget())
    soft = {"sympy": "1.0"}
    stale = replace(made, toolchain=tuple((dict(made.toolchain) | soft).items()))
    assert again(replace(settled, made=stale), bench).budget == Budget()
    start = again(replace(settled, made=replace(made, sources="others")), bench)
    assert start.budget == START and start.key == settled.key
    cache = MemoryCache({start.key: start})
    tuned = tune(CHAIN, CPU, cache, TuneOptions(trials=8), worker=bench)
    assert tuned.budget.trials == 8, "it was searched"


def test_where_the_device_is_not_at_hand_the_schedule_is_proven() -> None:
    device = CATALOGUE["nvidia/h200"]
    chain = replace(CHAIN, name="elsewhere")
    with Away(device) as worker:
        chosen = tune(chain, device, MemoryCache(), TuneOptions(), worker=worker)
        made = rebuilt(record_of(replace(chosen, measured=1e-6)), device, worker, math.inf)
        assert made.measured is None and made.source == chosen.source
        assert made.binary[:4] == b"\x7fELF" and made.key == chosen.key
        assert wanted_key(record_of(chosen), device, worker.backend) == chosen.made


def test_a_source_that_is_not_what_is_generated_is_told() -> None:
    assert changed(searched()) == ""
    edited = replace(searched(), source=searched().source + "# edited\n")
    assert changed(edited) == "the code generator makes another source"
    elsewhere = replace(searched(), tiles=dict.fromkeys(searched().tiles, 3))
    assert changed(elsewhere) == "its schedule is none of those that are searched"


def test_a_kernel_without_a_cache_key_has_no_record() -> None:
    with pytest.raises(ValueError, match="without its cache key"):
        record_of(replace(searched(), made=None))


class Ranked(HashBench):
    """Every kernel takes as long as the others but for `slow`, which takes ten times as long."""

    slow = ""

    def measure(self, chain, programs, seed, together=False, varied=False, **more):
        sources = [p[0].source for p in programs]
        self.alone += sources if not (together or varied) else []
        return [Measured(1e-5 if s == self.slow else 1e-6, 1e-7) for s in sources]


def claimed(bench: HashBench, deadline: float = math.inf) -> Tuned:
    """What is made of a record that claims to be the result of a long search."""
    long = replace(record_of(searched()), budget=Budget(None, 3600.0, "settled"), trials=10**6)
    return vetted(long, CPU, bench, deadline)


def test_a_claim_is_believed_where_no_rival_is_faster() -> None:
    with Ranked() as bench:
        made = claimed(bench)
    assert made.source == searched().source and len(set(bench.alone)) == RIVALS
    assert (made.budget, made.trials) == (Budget(None, 3600.0, "settled"), 10**6)


def test_a_slow_kernel_s_claim_counts_for_nothing() -> None:
    with Ranked() as bench:
        bench.slow = searched().source
        made = claimed(bench)
    assert made.source != searched().source and made.measured == 1e-6
    assert (made.budget.trials, made.budget.ended, made.trials) == (RIVALS, "trials", RIVALS)
    assert not made.budget.covers(made.trials, None, 60.0), "the next search goes on"


def test_a_claim_that_there_is_no_time_to_check_counts_for_nothing(monkeypatch) -> None:
    with Ranked() as bench:
        monkeypatch.setattr(Tuning, "_late", lambda self: self.only is None)
        made = claimed(bench)
    assert made.source == searched().source and (made.budget, made.trials) == (START, 1)


def test_a_device_that_is_not_at_hand_checks_no_claim() -> None:
    with Away(CPU) as bench:
        assert claimed(bench).measured is None
