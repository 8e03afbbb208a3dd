"""Searches that were cut short go on: which, in which order, for how long, and what changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mcfuser.chain import Chain, from_text
from mcfuser.compile import compile_model
from mcfuser.decide import USEFUL, ModelTuning
from mcfuser.devices.catalogue import device_named
from mcfuser.graph.selection import ChainMatch
from mcfuser.measure.worker import Worker
from mcfuser.resume import cut_short, resume, with_kernel
from mcfuser.tune.budget import Budget, StopReason
from mcfuser.tune.cover import Cover, Decision
from mcfuser.tune.progress import Note, Progress
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from tests.support.kernels import tuned
from tests.support.nets import Net
from tests.support.workers import Away, StandIn

CPU = device_named("cpu")
LARGE, SMALL = "gemm:1,64,64,32,32", "gemm:1,16,16,16,16"
TEXTS = {from_text(text).key: text for text in (LARGE, SMALL)}


def kernel(text: str, seconds: float, ended: StopReason = "time") -> Tuned:
    found = replace(tuned(chain=text), measured=seconds, budget=Budget(None, 5.0, ended))
    return replace(found, source=f"{text} in {seconds}")


def decided(*kernels: Tuned) -> Decision:
    """A cover of these kernels, and one that takes twice as long and is not kept."""
    chains = tuple(t.chain for t in kernels)
    where = tuple((str(i),) for i in range(len(kernels)))
    slower, kept = (Cover(where, chains, kernels) for _ in range(2))
    return Decision(where, kept, (slower, kept), (2 * kept.seconds, kept.seconds), "it is faster")


def model(large: Decision, small: Decision) -> tuple[list[ChainMatch], dict[str, Decision]]:
    """The large chain in one place, and the small one in three."""
    chains = [from_text(text) for text in (LARGE, SMALL, SMALL, SMALL)]
    matches = [ChainMatch(c, {}, {}, {}, {}, (), 0) for c in chains]
    return matches, {chains[0].key: large, chains[1].key: small}


class Run(ModelTuning):
    """A run with some seconds left, whose searches end at once with a kernel that takes a `gain`th
    of the time. It knows what it is `asked`: the chain, among how many searches the time is shared,
    and the nominal seconds of one."""

    def __init__(self, left: float, gain: float = 2.0, worker: Worker | None = None) -> None:
        self.told: list[Note | Progress] = []
        self.asked: list[tuple[str, int, float]] = []
        self.gain = gain
        end = time.monotonic() + left
        super().__init__(
            CPU, MemoryCache(), TuneOptions(), self.told.append, worker or StandIn(CPU), end, 1.0,
            share=5.0,
        )  # fmt: skip

    def tune(self, chain: Chain) -> Tuned:
        self.asked.append((TEXTS[chain.key], self.searches, self.share))
        seconds = {LARGE: 4e-5, SMALL: 2e-5}[TEXTS[chain.key]] / self.gain
        return kernel(TEXTS[chain.key], seconds, "settled")


def test_the_searches_of_what_takes_longest_go_on_first() -> None:
    matches, decisions = model(decided(kernel(LARGE, 4e-5)), decided(kernel(SMALL, 2e-5)))
    pending = cut_short(matches, decisions)
    assert [(c.key, c.number) for c in pending] == [(m.chain.key, 0) for m in matches[1::-1]]
    assert [c.seconds for c in pending] == pytest.approx([6e-5, 4e-5])
    run = Run(3 * USEFUL)
    found = resume(run, matches, decisions)
    (first, two, some), (second, one, more) = run.asked
    assert (first, second) == (SMALL, LARGE)
    assert (two, one) == (2, 1)
    assert some == pytest.approx(5 + 1.5 * USEFUL, rel=0.1)
    assert more == pytest.approx(5 + 3 * USEFUL, rel=0.1)
    assert run.share == 5.0
    assert [found[m.chain.key].kernels[0].seconds for m in matches[:2]] == [2e-5, 1e-5]
    assert found[matches[0].chain.key].times == pytest.approx((8e-5, 2e-5))
    words = [n.words for n in run.told if isinstance(n, Note)]
    assert "went on: it took 20.0 us, 10.0 now" in words[0]


def test_what_is_measured_first_when_searches_go_on_tells_how_long_building_takes() -> None:
    """A kernel that the model had chosen tells nothing of its compiler's time."""
    matches, decisions = model(
        decided(replace(kernel(LARGE, 4e-5), measured=None, predicted=4e-5)),
        decided(kernel(SMALL, 2e-5)),
    )
    learned = list[str]()

    class Learns(Run):
        def learn(self, kernels: Sequence[Tuned]) -> None:
            learned.extend(TEXTS[k.chain.key] for k in kernels)
            assert self.going_on and all(k.measured is not None for k in kernels)

    run = Learns(3 * USEFUL)
    resume(run, matches, decisions)
    assert learned == [LARGE] and not run.going_on


def test_what_settled_is_left() -> None:
    large, small = decided(kernel(LARGE, 4e-5, "settled")), decided(kernel(SMALL, 2e-5, "trials"))
    matches, decisions = model(large, small)
    run = Run(3 * USEFUL)
    assert resume(run, matches, decisions) == decisions
    assert not run.asked


def test_little_time_is_for_the_first_of_them() -> None:
    matches, decisions = model(decided(kernel(LARGE, 4e-5)), decided(kernel(SMALL, 2e-5)))
    run = Run(1.5 * USEFUL)
    resume(run, matches, decisions)
    assert [shared for _, shared, _ in run.asked][:1] == [1]
    late, away = Run(0.5 * USEFUL), Run(3 * USEFUL, worker=Away(CPU))
    for none in (late, away):
        assert resume(none, matches, decisions) == decisions
        assert not none.asked


def test_only_the_piece_that_was_cut_short_changes() -> None:
    large, small = kernel(LARGE, 4e-5, "settled"), kernel(SMALL, 2e-5)
    both = decided(large, small)
    matches, decisions = model(both, decided(kernel(SMALL, 2e-5, "settled")))
    run = Run(3 * USEFUL)
    found = resume(run, matches, decisions)[matches[0].chain.key]
    assert [name for name, _, _ in run.asked] == [SMALL]
    assert found.kernels[0] == large
    assert found.kernels[1].seconds == 1e-5
    assert found.kept in found.covers
    assert found.times == pytest.approx((12e-5, 5e-5))


def test_a_kernel_that_is_no_faster_changes_no_time() -> None:
    before = decided(kernel(LARGE, 4e-5))
    assert before.kept is not None
    after = with_kernel(before, before.kept, 0, kernel(LARGE, 5e-5))
    assert after.times == before.times
    untimed = replace(before, times=())
    assert with_kernel(untimed, before.kept, 0, kernel(LARGE, 1e-5)).times == ()


def test_a_model_has_the_kernels_of_searches_that_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search of the first round ends at once, as if its time were over."""
    rounds = []

    def tune(made: ModelTuning, chain: Chain, seconds: float) -> Tuned:
        found = first(replace(made), chain)
        rounds.append(seconds)
        if len(rounds) == 1:
            return replace(found, budget=Budget(None, 5.0, "time"), source=found.source + "\n")
        return found

    first = ModelTuning.tune
    monkeypatch.setattr(ModelTuning, "tune", lambda run, chain: tune(run, chain, run.share))
    net = Net()
    y = net.op("MatMul", net.input("x", 16, 32), net.weight(32, 48))
    made = compile_model(
        net.model(y).SerializeToString(),
        CPU,
        MemoryCache(),
        TuneOptions(trials=1, timeout=600.0),
        {},
    )
    assert len(rounds) == 2 and rounds[1] > rounds[0]
    (decision,) = made.decided.decisions.values()
    assert not decision.kernels[0].source.endswith("\n\n")
