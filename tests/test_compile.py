"""A model in, a module out: what is fused, what is not and why, and that it computes the model."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from fastapi.testclient import TestClient

from mcfuser import compile as compiling
from mcfuser import decide as deciding
from mcfuser.backends.cuda.backend import CudaBackend
from mcfuser.compile import CompiledModel, LockedBuild, compile_model
from mcfuser.decide import CHOOSING
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DeviceError
from mcfuser.graph import segment
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.lock import EntryPin, Lock, ModelPin, updated
from mcfuser.measure.rounds import MARGIN
from mcfuser.measure.worker import Worker
from mcfuser.tune.locked import LockMiss
from mcfuser.tune.progress import Listener, Note, Progress, unheard
from mcfuser.tune.tuned import Cache, MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import tune
from mcfuser_db import Blobs, Storage
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings
from tests.support.agreement import disagreement
from tests.support.blocks import decoding
from tests.support.chains import renamed
from tests.support.nets import Net
from tests.support.paths import FIXTURES

CPU = device_named("cpu")
QUICK = TuneOptions(trials=1, timeout=3600.0)
"""Made before tests give options patience: no search may end by a busy machine's clock."""


def compiled(
    name: str, cache: Cache, shapes=None, listener: Listener = unheard
) -> tuple[CompiledModel, bytes]:
    model = (FIXTURES / f"{name}.onnx").read_bytes()
    return compile_model(model, CPU, cache, QUICK, shapes or {}, listener), model


@lru_cache
def once(name: str) -> tuple[CompiledModel, Mapping[str, Tuned]]:
    """A model compiled with an empty cache, and what is in the cache then: for several tests."""
    cache = MemoryCache()
    return compiled(name, cache)[0], MappingProxyType(cache.kept)


@pytest.mark.parametrize(
    "name",
    ["attention_where", "attention_nan_guard", "feed_forward_gelu", "three_products",
     "attention_split", "no_product", "escaping", "attention_operator", "attention_microsoft",
     "recurrent_lstm", "recurrent_gru"],
)  # fmt: skip
def test_the_module_computes_the_model(name: str, tmp_path: Path) -> None:
    artifact, model = once(name)[0], (FIXTURES / f"{name}.onnx").read_bytes()
    assert disagreement(artifact.module, model, tmp_path) <= 1e-5
    json.dumps(artifact.report)
    for chain in artifact.report["chains"]:
        assert chain["reason"]
        if chain["fused"] and chain["unfused_seconds"] is None:
            assert chain["reason"].endswith(("alone", "at least"))
        elif chain["fused"]:
            assert chain["fused_seconds"] <= MARGIN * chain["unfused_seconds"]
        assert len(chain["cut"]) == len(chain["kernels"])
        assert sum(chain["cut"]) == (len(chain["operators"]) if chain["cut"] else 0)
        for kernel in chain["kernels"]:
            assert kernel["error"] <= 1e-5 and kernel["measured_seconds"] > 0
            assert kernel["work"]["bytes"] > 0 and kernel["work"]["bandwidth"] > 0
    steps = artifact.report["outline"]["steps"]
    places = {n: len(c["places"]) for n, c in enumerate(artifact.report["chains"])}
    assert Counter(s["chain"] for s in steps if s["chain"] is not None) == places
    for product in artifact.report["products"]:
        fused = (
            product["chain"] is not None and artifact.report["chains"][product["chain"]]["fused"]
        )
        assert fused or product["reason"]
        assert product["phi"] > 0


@pytest.mark.parametrize("opened", [True, False])
def test_a_device_that_was_opened_is_at_hand_although_its_process_is_gone(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may break it, and then no time may be left to open it again: the module is compared
    all the same."""

    def refused(self: Worker, deadline: float = 0.0) -> str:
        self.opened = opened
        return "no time was left to open the device"

    monkeypatch.setattr(Worker, "refused", refused)
    n = Net(np.float16)
    model = n.model(n.op("MatMul", n.input("x", 64, 64), n.weight(64, 64)))
    done = compile_model(
        model.SerializeToString(), device_named("nvidia/h200"), MemoryCache(), QUICK, {}
    )
    assert (done.decided.missing is None) == opened


@pytest.mark.parametrize("device", ["cpu", "nvidia/h200"])
def test_what_modules_cannot_be_built_without_is_told_first(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = list[object]()
    with pytest.raises(DeviceError, match=f"'{device}' can be built: no C.. compiler is in the"):
        compile_model(b"", device_named(device), MemoryCache(), QUICK, {}, told.append)
    assert told == []


def test_what_no_gpu_computes_is_told_before_anything_is_tuned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CudaBackend, "lacking", lambda _: None)
    monkeypatch.setattr(compiling, "decide_all", lambda *_: pytest.fail("something was tuned"))
    net = Net(np.int64)
    model = net.model(net.op("Unique", net.input("x", 32))).SerializeToString()
    with pytest.raises(DeviceError, match="'nvidia/h200' cannot run the model: its Unique"):
        compile_model(model, device_named("nvidia/h200"), MemoryCache(), QUICK, {})


def test_a_decoding_step_is_right_and_is_built_as_it_was_locked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its norms share the kernels of their products, by one price; the lock has these chains though
    another price would not."""
    model = decoding(64, 4, 2, 96, 16).SerializeToString()
    for module in (compiling, deciding):
        monkeypatch.setattr(module, "expected", lambda chain, *_, **__: 1e-6)
    made = compile_model(model, CPU, MemoryCache(), QUICK, {})
    assert disagreement(made.module, model, tmp_path) < 1e-5
    keys = [c["key"] for c in made.report["chains"]]
    assert any("sqrt" in o for c in made.report["chains"] for o in c["operators"][:-1])
    dear = partition(load(model, {}).module, 1e9, 1e9, lambda chain: len(chain.operators) ** 3)
    assert {m.chain.key for m in dear.matches} != set(keys)
    monkeypatch.setattr(compiling, "expected", lambda chain, *_, **__: len(chain.operators) ** 3)
    again = compile_model(model, CPU, MemoryCache(), QUICK, {}, locked=lock_of(made, model))
    assert [c["key"] for c in again.report["chains"]] == keys


def test_a_precision_is_never_chosen_unasked() -> None:
    report = once("attention_where")[0].report
    assert report["precision"] is None
    assert {p["dtype"] for p in report["products"]} == {"float32"}


def test_a_warm_cache_answers_without_measuring() -> None:
    first, kept = once("attention_where")
    cache = MemoryCache(dict(kept))
    second, _ = compiled("attention_where", cache)
    assert cache.kept == kept
    assert [c["key"] for c in first.report["chains"]] == [c["key"] for c in second.report["chains"]]


def test_every_kernel_of_a_report_is_found_over_http(tmp_path: Path) -> None:
    """By its key, and by the key and the name of the chain that has it."""
    settings = ServiceSettings(data=tmp_path)
    store = Storage(settings.database_url)
    names = ("attention_where", "three_products")
    for kernel in (k for name in names for k in once(name)[1].values()):
        store.put(kernel)
    reports = [compiled(name, store)[0].report for name in names]
    app = create_app(settings, store, Blobs(settings.blobs), lambda: 1)
    with TestClient(app, base_url="http://localhost") as client:
        for chain in (c for report in reports for c in report["chains"]):
            keys = {k["key"] for k in chain["kernels"]}
            assert keys
            for asked in (chain["key"], chain["name"], *chain["places"]):
                found = client.get("/v1/kernels", params={"chain": asked, "limit": 500})
                assert keys <= {k["key"] for k in found.json()["items"]}
            for kernel in chain["kernels"]:
                whole = client.get(f"/v1/kernels/{kernel['key']}").json()
                assert whole["key"] == kernel["key"]
                assert whole["measured"] == kernel["measured_seconds"]
                assert whole["launch"] and whole["made"]["chain"] == kernel["chain_key"]
                assert whole["budget"]["ended"] == kernel["ended"]
    store.close()


def test_a_model_tuned_again_searches_every_chain_once() -> None:
    kept = once("attention_where")[1]
    cache = MemoryCache(dict(kept))
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    again = compile_model(model, CPU, cache, replace(QUICK, retune=True), {})
    used = {k["key"] for c in again.report["chains"] for k in c["kernels"]}
    assert used and all(cache.kept[key] is not kept.get(key) for key in used)


def test_a_model_without_a_chain_compiles_all_the_same(tmp_path: Path) -> None:
    artifact, _ = once("double")
    assert artifact.report["chains"] == []
    assert artifact.module[:4] == b"\x7fELF"


def test_without_time_the_model_chooses_every_kernel(tmp_path: Path) -> None:
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    artifact = compile_model(model, CPU, MemoryCache(), TuneOptions(timeout=1e-9), {})
    kernels = [k for c in artifact.report["chains"] for k in c["kernels"]]
    assert kernels and all(k["measured_seconds"] is None for k in kernels)
    assert artifact.report["times"] == "predicted, not measured"
    assert all("predicted, not measured" in c["reason"] for c in artifact.report["chains"])
    assert disagreement(artifact.module, model, tmp_path) <= 1e-5


def test_a_compilation_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one cover: no other is close."""
    monkeypatch.setattr(segment, "CLOSE_COVERS", 0.0)
    told: list[Progress | Note] = []
    cache = MemoryCache()
    made = compiled("three_products", cache, listener=told.append)[0]
    progress = [p for p in told if isinstance(p, Progress)]
    stages = [next(group) for _, group in groupby(p.stage for p in progress)]
    assert stages == ["import", "measure", "build", "done"]
    chains = made.report["chains"]
    searching = [p for p in progress if p.stage == "measure"]
    places = {p.chain for p in searching}
    assert {c.name for c in places if c is not None} == {c["name"] for c in chains}
    assert all(c is not None and 1 <= c.number <= c.of == len(chains) for c in places)
    assert all(p.left is not None and 0 <= p.left <= QUICK.timeout + 100 for p in searching)
    assert max(p.done for p in searching) == 1 and any(p.best for p in searching)
    notes = [n.words for n in told if isinstance(n, Note)]
    assert notes[0].startswith(f"the model has {len(chains)} distinct chains")
    for chain in chains:
        (decided,) = (n for n in notes if f"'{chain['name']}'" in n)
        assert decided.endswith(chain["reason"])
    assert sum("1 candidates tried" in n for n in notes) == sum(len(c["kernels"]) for c in chains)


def test_with_no_time_at_all_everything_is_left_to_tvm(tmp_path: Path) -> None:
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    artifact = compile_model(
        model, CPU, MemoryCache(), TuneOptions(), {}, end=time.monotonic() - CHOOSING
    )
    assert all(not c["kernels"] and c["reason"].startswith("left to TVM: ") and
               "no time was left" in c["reason"] for c in artifact.report["chains"])  # fmt: skip
    assert disagreement(artifact.module, model, tmp_path) <= 1e-5


def test_a_number_that_is_known_only_at_run_time_is_read_by_a_kernel(tmp_path: Path) -> None:
    """The scale of numbers that are quantized as the model runs has no dimension."""
    net = Net()
    x = net.input("x", 64, 64)
    scale = net.op("ReduceMax", net.op("Abs", x), keepdims=0)
    product = net.op("Mul", net.op("MatMul", x, net.weight(64, 64)), scale)
    model = net.model(net.op("Relu", product)).SerializeToString()
    artifact = compile_model(model, CPU, MemoryCache(), TuneOptions(trials=1), {})
    assert disagreement(artifact.module, model, tmp_path) <= 1e-5


def lock_of(artifact: CompiledModel, model: bytes) -> LockedBuild:
    """The lock that a batch writes after a compilation."""
    made = ModelPin.model_validate(json.loads(json.dumps(artifact.report["lock"])))
    entry = EntryPin(
        model=sha256(model).hexdigest(), module="", chains=tuple(made.chains), seconds=None,
        buckets=made.buckets,
    )  # fmt: skip
    lock = Lock.model_validate_json(updated(Lock(), [("a model", entry, made)], {}).text)
    return LockedBuild(lock, "mcfuser.lock", lock.buckets(CPU.key, entry.model))


@pytest.mark.parametrize("name", ["three_products", "no_product"])
def test_a_lock_gives_the_same_module_without_a_search(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, twice."""
    artifact, model = once(name)[0], (FIXTURES / f"{name}.onnx").read_bytes()
    locked, cache = lock_of(artifact, model), MemoryCache()
    for search in ("tune", "compare", "decide"):
        monkeypatch.setattr(deciding, search, None)
    again = [compile_model(model, CPU, cache, QUICK, {}, locked=locked) for _ in range(2)]
    for made in again:
        assert bytes(made.module) == bytes(artifact.module)
        for key, decision in artifact.decided.decisions.items():
            rebuilt = made.decided.decisions[key]
            assert [k.source for k in rebuilt.kernels] == [k.source for k in decision.kernels]
        assert made.report["lock"] == artifact.report["lock"]
        assert {c["reason"] for c in made.report["chains"]} <= {
            "as mcfuser.lock has it", "left to TVM, as mcfuser.lock has it",
        }  # fmt: skip
    assert not cache.kept and not cache.uses, "a locked build leaves the cache alone"


def test_a_lock_gives_the_same_module_where_others_have_tuned_its_kernels(tmp_path: Path) -> None:
    """The cache has a kernel of an equal chain of other names, which its source has."""
    model = (FIXTURES / "no_product.onnx").read_bytes()
    found = partition(load(model, {}).module, 1e9, 1e9).matches[0].chain
    named = renamed(found, {a.name: f"{a.name}9" for a in found.axes}, {found.inputs[0]: "theirs"})
    cache = MemoryCache()
    theirs = tune(named, CPU, cache, QUICK)
    artifact = compile_model(model, CPU, cache, QUICK, {})
    kept = artifact.decided.decisions[found.key].kernels
    assert [k.source for k in kept] == [theirs.source] and "theirs" in theirs.source
    again = compile_model(model, CPU, MemoryCache(), QUICK, {}, locked=lock_of(artifact, model))
    assert bytes(again.module) == bytes(artifact.module)
    assert disagreement(again.module, model, tmp_path) < 1e-5


def test_a_model_with_other_chains_than_the_locks_is_refused() -> None:
    artifact = once("three_products")[0]
    other = (FIXTURES / "attention_split.onnx").read_bytes()
    with pytest.raises(LockMiss, match=r"chain '.*' cannot be built as mcfuser.lock has it: "):
        compile_model(other, CPU, MemoryCache(), QUICK, {}, locked=lock_of(artifact, b""))
