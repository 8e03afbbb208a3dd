"""Which kernels compute a model's chains: what is tuned first, how long, and which cover wins."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcfuser import compile as compiling
from mcfuser import decide as deciding
from mcfuser import whole
from mcfuser.backends import backend_of
from mcfuser.build import DecidedModel, build
from mcfuser.building import ModuleToBuild
from mcfuser.chain import Chain, flops, gemm, products, unfused_cut
from mcfuser.compile import CompiledModel, compile_model
from mcfuser.decide import ModelTuning, partition_for
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.graph.draw import Feeds
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition
from mcfuser.measure.request import COMPILED
from mcfuser.measure.worker import Worker
from mcfuser.tune.cover import Decision
from mcfuser.tune.progress import Note, Progress, unheard
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.whole import WholeModules
from tests.support.agreement import disagreement
from tests.support.interpreted import Pickler
from tests.support.kernels import tuned
from tests.support.nets import Net
from tests.support.paths import FIXTURES
from tests.support.workers import Away, StandIn

CPU = device_named("cpu")
H200 = device_named("nvidia/h200")
QUICK = TuneOptions(trials=1, timeout=3600.0)
"""Made before tests give options patience: no search may end by a busy machine's clock."""


@pytest.mark.parametrize("narrow", [None, "tf32"])
def test_a_gpu_may_round_what_it_multiplies_where_that_is_asked_for(narrow: str | None) -> None:
    model = (FIXTURES / "three_products.onnx").read_bytes()
    loaded = load(model, {}, narrow=narrow)
    allowed = {
        device: {m.chain.precision for m in partition_for(loaded, device_named(device)).matches}
        for device in ("nvidia/h200", "cpu")
    }
    assert allowed == {"nvidia/h200": {narrow or "float32"}, "cpu": {"float32"}}


@pytest.mark.parametrize(("device", "deep"), [("nvidia/h200", True), ("cpu", False)])
def test_weights_lie_along_the_depth_where_tensor_cores_multiply_tf32(
    device: str, deep: bool
) -> None:
    loaded = load((FIXTURES / "three_products.onnx").read_bytes(), {})
    for match in partition_for(loaded, device_named(device)).matches:
        for o in products(match.chain):
            roles = o.product
            assert roles is not None
            weights = match.chain.tensor(roles.right.tensor)
            assert weights.constant and (weights.shape[-1] in roles.depth) == deep
            assert match.constants[weights.name].shape == match.chain.shape(weights.name)


def rivals(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[CompiledModel, bytes, list[str]]:
    """Three products in a row, of which the first two or the last two share a chain, for the same
    price; the times of kernels in sum are multiplied by a number for what has the first two. And
    what is told of covers."""
    measured = deciding._sum

    def multiplied(decided: DecidedModel) -> float:
        return measured(decided) * (factor if crosses(decided.parted) else 1.0)

    for module in (compiling, deciding):
        monkeypatch.setattr(module, "expected", lambda chain, *_, **__: 1e-6)
    monkeypatch.setattr(deciding, "_sum", multiplied)
    told: list[Progress | Note] = []
    model = (FIXTURES / "three_products.onnx").read_bytes()
    made = compile_model(model, CPU, MemoryCache(), QUICK, {}, told.append)
    return made, model, [n.words for n in told if isinstance(n, Note) and "cover" in n.words]


def crosses(parted: Partition) -> bool:
    return any(m.chain.name == "MatMul_0_MatMul_2" for m in parted.matches)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_covers_that_are_predicted_to_be_close_are_both_measured(
    factor: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(WholeModules, "seconds", None)  # their sums are far from each other
    made, model, (note,) = rivals(factor, monkeypatch)
    assert note.startswith("a cover with chain 'MatMul_") and "one without" in note
    assert crosses(made.decided.parted) == (factor < 1)
    assert disagreement(made.module, model, tmp_path) < 1e-5
    assert [p["chain"] is None for p in made.report["products"]] == [False] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("faster", [True, False])
def test_covers_whose_kernels_take_as_long_are_timed_as_whole_modules(
    faster: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other cover is kept where its module is faster, and no module is built twice."""
    built, timed = [], []

    def counted(decided: DecidedModel) -> Any:
        built.append(decided.parted)
        return build(decided)

    def in_turns(modules: Sequence[Path], feeds: Feeds, mode: str, limit: float) -> Any:
        timed.append([module.read_bytes() for module in modules])
        assert mode == "host" and list(feeds) == ["x"] and limit > 0
        return (1.0, 2.0) if faster else (2.0, 2.02)

    monkeypatch.setattr(whole, "build", counted)
    monkeypatch.setattr(whole, "timed_in_turns", in_turns)
    monkeypatch.setattr(deciding, "NEAR", math.inf)  # a tick may be 1e3 kernels long
    made, model, (note,) = rivals(1.0, monkeypatch)
    assert len(built) == 2 and crosses(built[0]) != crosses(built[1])
    ((other, first),) = timed
    assert bytes(made.module) == (other if faster else first)
    assert made.decided.parted is built[0 if faster else 1]
    assert note.endswith("the first is kept" if faster else "the second is kept")
    assert disagreement(made.module, model, tmp_path) < 1e-5


def test_modules_that_are_timed_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(deciding, "NEAR", math.inf)  # a tick may be 1e3 kernels long
    made, model, (note,) = rivals(1.0, monkeypatch)
    assert "the whole module" in note
    assert disagreement(made.module, model, tmp_path) < 1e-5


def test_where_a_module_cannot_be_timed_the_sums_of_its_kernels_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise InputError("it does not run")

    monkeypatch.setattr(whole, "timed_in_turns", fails)
    monkeypatch.setattr(deciding, "NEAR", math.inf)  # a tick may be 1e3 kernels long
    made, _, (why, note) = rivals(1e-6, monkeypatch)
    assert why == "two covers were not timed as whole modules: it does not run"
    assert crosses(made.decided.parted) and "the sum of its kernels" in note


def test_modules_are_timed_only_where_there_is_time_to_build_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WholeModules, "seconds", None)
    monkeypatch.setattr(deciding, "NEAR", math.inf)  # a tick may be 1e3 kernels long
    monkeypatch.setattr(deciding, "STARTED", 1e9)
    assert crosses(rivals(1e-6, monkeypatch)[0].decided.parted)


def test_the_estimate_of_the_time_left_follows_the_searches_that_are_over() -> None:
    now = time.monotonic()
    run = ModelTuning(
        CPU, MemoryCache(), QUICK, unheard, cast(Worker, None), now + 1000, 5.0, now - 30,
        planned=5, searches=5,
    )  # fmt: skip
    run.searches = 4  # the first search is under way: nothing is known but the deadline
    assert run.left(now - 30) == pytest.approx(1005, abs=1)
    run.searches = 2  # two are over in 20 s, the third has taken 10 of them, two are to come
    assert run.left(now - 10) == pytest.approx(0 + 20 + 5, abs=1)
    run.deadline = now + 3
    assert run.left(now - 10) == pytest.approx(8, abs=1)


def test_where_time_is_short_the_model_chooses_and_the_rest_is_for_searches_that_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = list[float]()
    monkeypatch.setattr(deciding, "tune", lambda *a: shares.append(a[6] - time.monotonic()))
    useful, chain = deciding.USEFUL, gemm(1, 16, 16, 16, 16)
    end = time.monotonic() + 3.5 * useful
    run = ModelTuning(CPU, MemoryCache(), QUICK, unheard, StandIn(CPU), end, 5.0, searches=4)
    run.tune(chain)
    assert run.searches == 3 and not run.short and not run.chooses
    run.hurried = True
    run.tune(chain)
    assert run.short and run.chooses, "those after it weigh less"
    run.going_on = True
    run.searches = 3
    run.tune(chain)
    assert not run.short and not run.chooses
    third = 3.5 * useful * (1 + 1 / 3) / 2
    assert shares == [pytest.approx(s, abs=0.1) for s in (0.0, 0.0, third)]


def test_all_chains_after_one_without_time_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five chains, of which the last one alone would have time."""
    net, found = Net(), list[tuple[bool, bool]]()
    outputs = [net.op("MatMul", net.input(f"x{n}", n, 64), net.weight(64, 16)) for n in (8, 16, 32)]
    runs = list[ModelTuning]()

    def decide(chain: Chain, *_: object) -> Decision:
        (run,) = {id(r): r for r in runs}.values()
        found.append((run.hurried, run.chooses))
        run.deadline += 1000.0
        return Decision(unfused_cut(chain), None, (), (), "noted")

    def begin_ahead(run: ModelTuning, *_: object) -> None:
        if not runs:
            runs.append(run)

    monkeypatch.setattr(deciding, "decide", decide)
    monkeypatch.setattr(ModelTuning, "begin_ahead", begin_ahead)
    monkeypatch.setattr(ModelTuning, "measured", property(lambda run: True))
    quick = replace(QUICK, timeout=deciding.USEFUL)
    compile_model(net.model(*outputs).SerializeToString(), CPU, MemoryCache(), quick, {})
    assert found == [(True, True)] * 3
    assert not runs[0].going_on


def test_what_building_will_not_take_is_time_for_tuning() -> None:
    """Kernels that were measured tell how long theirs, and those of other chains, are compiled."""
    now = time.monotonic()
    module = ModuleToBuild(0.5, 0.5, 20, backend_of(CPU), now + 1000.0, now + 40.0, 40.0)
    begun = module.tuned_by(module.seconds())
    run = ModelTuning(
        CPU, MemoryCache(), QUICK, unheard, StandIn(CPU), begun, module.seconds(), module=module
    )
    run.give_up = begun + deciding.CHOOSING

    def kernels(*seconds: float | None) -> list[Tuned]:
        conditions = [{} if s is None else {COMPILED: s} for s in seconds]
        return [replace(tuned(), conditions=c) for c in conditions]

    run.learn(kernels(None))
    run.learn([])
    assert (run.deadline, run.compiled) == (begun, []), "nobody knows"
    run.learn(kernels(0.1, None))
    run.learn(kernels(0.0, 0.2))
    assert run.compiled == [0.2, 0.2]
    assert run.building == module.seconds([0.2, 0.2]) < module.seconds() - 2
    assert run.deadline == module.tuned_by(run.building) > begun + 2
    assert run.give_up == pytest.approx(run.deadline + deciding.CHOOSING)


def test_half_of_the_time_is_shared_by_what_chains_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three searches the first one is for 3/4 of all that weighs; alone, one has all time."""
    shares = []

    def tune(*given: Any) -> None:
        shares.append(given[6] - time.monotonic())

    monkeypatch.setattr(deciding, "tune", tune)
    now, worker = time.monotonic(), StandIn(CPU)
    run = ModelTuning(CPU, MemoryCache(), QUICK, unheard, worker, now + 1200, 5.0, searches=3)
    run.part = 0.75
    chain = gemm(1, 16, 16, 16, 16)
    run.tune(chain)
    assert shares == [pytest.approx(1200 * (1 / 3 + 3 / 4) / 2, abs=1)]
    assert run.searches == 2
    run = ModelTuning(CPU, MemoryCache(), QUICK, unheard, worker, now + 1200, 5.0)
    run.tune(chain)
    assert shares[1] == pytest.approx(1200, abs=1)
    run = ModelTuning(CPU, MemoryCache(), QUICK, unheard, worker, now + 1200, 5.0, searches=1000)
    run.tune(chain)
    assert run.short and shares[2] == pytest.approx(0, abs=1)


@pytest.mark.thorough
def test_a_chain_weighs_what_it_computes_in_all_its_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the parts of those still to come; a chain of two products is searched for three times."""
    net = Net()
    wide = net.op("MatMul", net.input("x", 64, 512), net.weight(512, 512))
    pair = net.op("MatMul", net.op("MatMul", net.input("y", 64, 64), net.weight(64, 64)),
                  net.weight(64, 16))  # fmt: skip
    told = []

    def decide(chain: Chain, device: object, search: Any, *_: object) -> Decision:
        told.append((len(unfused_cut(chain)), search.__self__.part))
        return Decision(unfused_cut(chain), None, (), (), "noted")

    monkeypatch.setattr(deciding, "decide", decide)
    monkeypatch.setattr(deciding, "weight", lambda chain, device: float(flops(chain)))
    model = net.model(wide, pair).SerializeToString()
    compile_model(model, device_named("h200"), MemoryCache(), QUICK, {})
    (first, part), (second, last) = told
    assert (first, second) == (1, 2)
    assert part == pytest.approx(64 * 512 * 512 / (64 * 512 * 512 + 64 * 64 * 80))
    assert last == pytest.approx(1 / 3)


def test_time_is_short_where_the_searches_to_come_would_measure_nothing() -> None:
    def short(worker: Worker, seconds: float) -> bool:
        end = time.monotonic() + seconds
        run = ModelTuning(
            worker.device, MemoryCache(), QUICK, unheard, worker, end, 5.0, searches=5
        )
        return run.short

    gpu = device_named("h200")
    for worker in (StandIn(CPU), StandIn(gpu)):
        assert short(worker, 4 * deciding.USEFUL) and not short(worker, 6 * deciding.USEFUL)
    assert not short(Away(gpu), 1.0), "nothing is measured there"
    many = StandIn(gpu)
    many.builder = Pickler(enough=deciding.USEFUL / 2)  # so many that a search takes less
    assert short(many, 2 * deciding.USEFUL) and not short(many, 3 * deciding.USEFUL)


@pytest.mark.thorough
def test_kernels_of_two_chains_are_built_while_the_model_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three chains, of which one has two products."""
    net = Net()
    outputs = []
    for i, n in enumerate((48, 32, 16)):
        x = net.op("MatMul", net.input(f"x{i}", n, 64), net.weight(64, n))
        outputs.append(net.op("MatMul", x, net.weight(n, 32)) if i == 0 else x)
    model = net.model(*outputs).SerializeToString()
    told = list[tuple[str, str]]()

    def begin_ahead(chain: Chain, *_: object) -> None:
        told.append(("ahead", chain.key))

    def decide(chain: Chain, *_: object) -> Decision:
        told.append(("decided", chain.key))
        return Decision(unfused_cut(chain), None, (), (), "noted")

    monkeypatch.setattr(deciding, "begin_ahead", begin_ahead)
    monkeypatch.setattr(deciding, "decide", decide)
    compile_model(model, device_named("h200"), MemoryCache(), QUICK, {})
    order = [key for what, key in told if what == "decided"]
    assert len(order) == 3
    first = told[: told.index(("decided", order[0]))]
    assert [key for _, key in first if key in order] == order[:2]
    assert len(first) == 4, "one of them has two pieces"
    assert ("ahead", order[2]) in told[len(first) : told.index(("decided", order[1]))]
    told.clear()
    compile_model(model, CPU, MemoryCache(), QUICK, {})
    assert {what for what, _ in told} == {"decided"}, "it can be measured"


def test_kernels_are_built_ahead_where_time_is_short_or_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of as many chains as there are builders for: where the model chooses, nothing is timed."""
    begun = []
    monkeypatch.setattr(deciding, "begin_ahead", lambda chain, *_: begun.append(chain.key))
    chain, end = gemm(1, 16, 16, 16, 16), time.monotonic() + 5.0

    def ahead(worker: Worker, searches: int, deadline: float = end) -> int:
        begun.clear()
        run = ModelTuning(worker.device, MemoryCache(), QUICK, unheard, worker, deadline, 5.0)
        run.searches = searches
        run.begin_ahead(chain, "all")
        return len(begun)

    gpu = StandIn(device_named("h200"))
    assert ahead(gpu, 100) > 0 and ahead(gpu, 1) == 0, "a search has time"
    for searches, deadline, some in ((100, end, True), (1, end, False), (1, end - 60.0, True)):
        assert (ahead(StandIn(CPU), searches, deadline) > 0) is some
    run = ModelTuning(gpu.device, MemoryCache(), QUICK, unheard, gpu, end, 5.0)
    for workers, chains in ((1, 2), (2, 2), (16, 16)):
        monkeypatch.setattr(type(gpu.builder), "workers", workers)
        assert run.ahead == chains


def test_what_weighs_most_is_decided_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution after a map of more elements, on a CPU whose cache nobody knows."""
    net = Net()
    wide = net.op("Relu", net.input("x", 1, 32, 64, 64))
    pooled = net.op("Softmax", net.op("Reshape", wide, net.ints(512, 256)))
    conv = net.op("Conv", net.input("y", 1, 32, 40, 40), net.weight(32, 32, 3, 3))
    model = net.model(pooled, conv).SerializeToString()
    decided = []

    def decide(chain: Chain, *_: object) -> Decision:
        decided.append(chain)
        return Decision(unfused_cut(chain), None, (), (), "noted")

    monkeypatch.setattr(deciding, "decide", decide)
    assert CPU.cache == 0
    compile_model(model, CPU, MemoryCache(), TuneOptions(trials=1), {})
    assert len(decided) == 2 and flops(decided[0]) > 0 == flops(decided[1])
    assert deciding.weight(decided[1], CPU) > 0


def test_a_chain_weighs_what_its_products_take_in_their_own_type() -> None:
    """On tensor cores those of float16 take a fraction of the time."""
    half, real = (gemm(1, 4096, 4096, 4096, 4096, d) for d in ("float16", "float32"))
    ratio = H200.throughput("float16") / H200.throughput("float32")
    assert deciding.weight(real, H200) / deciding.weight(half, H200) == pytest.approx(ratio)
