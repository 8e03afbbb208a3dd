"""A model in, a module out: what is fused, what is not and why, and that it computes the model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mcfuser import compile as compiling
from mcfuser.compile import Artifact, compile_model
from mcfuser.decide import MARGIN
from mcfuser.device import device_named
from mcfuser.graph.check import check
from mcfuser.tuned import MemoryCache, Options

FIXTURES = Path(__file__).parent / "fixtures"
CPU = device_named("cpu")
QUICK = Options(trials=8)


def compiled(name: str, cache: MemoryCache, shapes=None) -> tuple[Artifact, bytes]:
    model = (FIXTURES / f"{name}.onnx").read_bytes()
    return compile_model(model, CPU, cache, QUICK, shapes or {}), model


@pytest.mark.parametrize(
    "name",
    ["attention_where", "attention_nan_guard", "feed_forward_gelu", "three_products",
     "attention_split", "no_product", "escaping"],
)  # fmt: skip
def test_the_module_computes_the_model(name: str, tmp_path: Path) -> None:
    artifact, model = compiled(name, MemoryCache())
    (tmp_path / "module.so").write_bytes(artifact.module)
    result = check(tmp_path, model, {})
    assert result.error <= 1e-5
    json.dumps(artifact.report)
    for chain in artifact.report["chains"]:
        assert chain["reason"]
        if chain["fused"] and chain["unfused_seconds"] is None:
            assert chain["reason"].endswith(("alone", "at least"))
        elif chain["fused"]:
            assert chain["fused_seconds"] <= MARGIN * chain["unfused_seconds"]
        for kernel in chain["kernels"]:
            assert kernel["error"] <= 1e-5 and kernel["measured_seconds"] > 0
    for product in artifact.report["products"]:
        fused = (
            product["chain"] is not None and artifact.report["chains"][product["chain"]]["fused"]
        )
        assert fused or product["reason"]
        assert product["phi"] > 0


def test_a_warm_cache_answers_without_measuring() -> None:
    cache = MemoryCache()
    first, _ = compiled("attention_where", cache)
    kept = dict(cache.kept)
    second, _ = compiled("attention_where", cache)
    assert cache.kept == kept
    assert [c["key"] for c in first.report["chains"]] == [c["key"] for c in second.report["chains"]]


def test_a_model_without_a_chain_compiles_all_the_same(tmp_path: Path) -> None:
    artifact, _ = compiled("no_product", MemoryCache())
    assert artifact.report["chains"] == []
    assert artifact.module[:4] == b"\x7fELF"


def test_without_time_the_model_chooses_every_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "CHOOSING", 1e6)
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    artifact = compile_model(model, CPU, MemoryCache(), Options(timeout=1e-9), {})
    kernels = [k for c in artifact.report["chains"] for k in c["kernels"]]
    assert kernels and all(k["measured_seconds"] is None for k in kernels)
    assert artifact.report["times"] == "predicted, not measured"
    assert all("predicted, not measured" in c["reason"] for c in artifact.report["chains"])
    (tmp_path / "module.so").write_bytes(artifact.module)
    assert check(tmp_path, model, {}).error <= 1e-5


def test_with_no_time_at_all_everything_is_left_to_tvm(tmp_path: Path) -> None:
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    artifact = compile_model(
        model, CPU, MemoryCache(), Options(), {}, end=time.monotonic() - compiling.CHOOSING
    )
    assert all(not c["kernels"] and c["reason"].startswith("left to TVM: ") and
               "no time was left" in c["reason"] for c in artifact.report["chains"])  # fmt: skip
    (tmp_path / "module.so").write_bytes(artifact.module)
    assert check(tmp_path, model, {}).error <= 1e-5


def test_a_busy_machine_leaves_more_time_to_build() -> None:
    """Seconds before the end at which tuning stops, by what the import took."""

    def left(took: float, worked: float) -> float:
        return 100.0 - compiling._tuned_by(1000.0, 100.0, took, worked)

    assert left(1.0, 1.0) < left(4.0, 4.0) < left(4.0, 1.0)
    assert compiling._tuned_by(60.0, None, 4.0, 1.0) == 60.0, "without an end nothing is set aside"
    assert compiling._tuned_by(60.0, 1000.0, 4.0, 1.0) == 60.0
