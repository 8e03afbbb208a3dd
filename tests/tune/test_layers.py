"""A team's cache under one's own: its schedules are built and checked here, then kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.devices.catalogue import device_named
from mcfuser.tune.exchange import TuningRecord
from mcfuser.tune.key import CacheKey
from mcfuser.tune.layers import LayeredCache
from mcfuser.tune.rebuild import RIVALS, record_of
from mcfuser.tune.tuned import MemoryCache, RetuneCache, Tuned, TuneOptions, Use
from mcfuser.tune.tuner import tune
from tests.support.benches import CHAIN, HashBench
from tests.support.records import searched

CPU = device_named("cpu")


class Team:
    """A team that keeps one kernel."""

    def __init__(self, kept: Tuned) -> None:
        self.record = record_of(kept)
        self.asked: list[CacheKey] = []

    def __call__(self, key: CacheKey) -> TuningRecord | None:
        self.asked.append(key)
        return self.record


@pytest.fixture
def bench():
    with HashBench() as made:
        yield made


def test_a_miss_is_taken_from_the_team_and_checked_here(bench: HashBench) -> None:
    own, team = MemoryCache(), Team(searched())
    layers = LayeredCache(own, team)
    one = tune(CHAIN, CPU, layers, TuneOptions(), worker=bench)
    assert bench.alone[0] == bench.varied[0] == searched().source
    assert len(set(bench.alone)) <= RIVALS, "no search, a few beside it"
    assert own.get(one.key) is one and one.measured is not None
    again = tune(CHAIN, CPU, layers, TuneOptions(), worker=bench)
    assert again is one and len(team.asked) == 1, "now it is one's own"


def test_a_kernel_of_the_team_s_that_is_wrong_here_is_searched_for(bench: HashBench) -> None:
    own, bench.wrong = MemoryCache(), {searched().source}
    one = tune(CHAIN, CPU, LayeredCache(own, Team(searched())), TuneOptions(), worker=bench)
    assert one.source != searched().source and len(bench.alone) > 1
    assert one.missed.startswith("the team's kernel is refused: ")


def test_a_short_search_of_the_team_s_is_gone_on_with(bench: HashBench) -> None:
    short = searched(CHAIN, 1)
    one = tune(CHAIN, CPU, LayeredCache(MemoryCache(), Team(short)), TuneOptions(), worker=bench)
    assert len(bench.alone) > 1 and (one.measured or 1) <= (short.measured or 0)


def test_a_record_under_another_key_is_not_taken(bench: HashBench) -> None:
    made = searched().made
    assert made is not None
    team = Team(replace(searched(), made=replace(made, sources="others")))
    tune(CHAIN, CPU, LayeredCache(MemoryCache(), team), TuneOptions(trials=4), worker=bench)
    assert team.asked and len(bench.alone) > 1


def test_tuning_anew_asks_no_team(bench: HashBench) -> None:
    team = Team(searched())
    layers = LayeredCache(MemoryCache(), team)
    tune(CHAIN, CPU, layers, TuneOptions(retune=True, trials=4), worker=bench)
    assert not team.asked


def test_everything_else_is_one_s_own() -> None:
    own = MemoryCache()
    layers = RetuneCache(LayeredCache(own, lambda key: None))
    layers.put(searched())
    layers.note([Use("c", "n", searched().key)])
    assert own.get(searched().key) is searched() and own.uses
    under = LayeredCache(own, lambda key: None)
    assert list(under.keys_of(CHAIN.key)) == [searched().made] and under.tried("x") == []
    assert under.offered(searched().made) is None  # type: ignore[arg-type]
