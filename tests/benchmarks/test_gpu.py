"""The GPU benchmark's arithmetic and bookkeeping, which need no GPU: ratios, tables, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpu
from gpu_table import best, table
from gpu_workloads import SUITES, workloads
from mcfuser.chain import Chain
from mcfuser.devices.catalogue import device_named
from mcfuser.tune.cover import Cover, Decision


def tuning(chain: Chain) -> gpu.Tuning:
    """The fused kernel was kept."""
    whole = Cover((len(chain.operators),), (chain,), ())
    decision = Decision(whole.cut, whole, (whole,), (), "nothing else was legal")
    return gpu.Tuning(chain, decision, 2.0, 5.0)


@pytest.fixture(autouse=True)
def known_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is not installed where tests run."""
    monkeypatch.setattr(gpu, "_versions", lambda: {"mcfuser": "a", "torch": "2"})


def answered(times: dict[str, list[float]]) -> dict[str, Any]:
    return {"times": times, "errors": {}, "missing": {}, "conditions": {"gpu": "NVIDIA H200"}}


def recorded(times: dict[str, list[float]], name: str = "G1") -> dict[str, Any]:
    w = workloads("tables")[name]
    return gpu._record(w, device_named("nvidia/h200"), tuning(w.chain), answered(times))


def test_ratios_are_of_rounds_not_of_medians() -> None:
    made = recorded({"fused": [1.0, 2.0, 4.0], "cuBLAS": [2.0, 4.0, 8.0], "slow": [9.0] * 3})
    assert made["ratios"]["cuBLAS"] == [2.0, 2.0, 2.0]
    assert made["micros"] == {"fused": 2.0, "cuBLAS": 4.0, "slow": 9.0}
    assert best(made) == "cuBLAS" and best(made, {"cuBLAS"}) == "slow"


def test_a_choice_that_was_wrong_has_no_ratio() -> None:
    made = recorded({"unfused": [1.0], "cuBLAS": [2.0]})
    assert made["ratios"] == {} and best(made) is None
    assert "| G1 | - * | 1.00 | 2.00 | - | - | - | 2.0 |" in table("tables", [made])


def test_the_table_holds_geometric_means() -> None:
    first = recorded({"fused": [1.0], "cuBLAS": [2.0]})
    second = recorded({"fused": [1.0], "cuDNN": [9.0], "FlexAttention": [8.0]}, "S1")
    text = table("tables", [first, second])
    assert "all **4.00** (least 2.00, 2 rows)." in text
    assert "S **9.00** (least 9.00, 1 rows)" in text.partition("Without FlexAttention")[2]


def test_results_of_other_versions_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    gpu._keep(path, [recorded({"fused": [1.0]}), recorded({"fused": [3.0]}, "G2")])
    gpu._keep(path, [recorded({"fused": [2.0]})])
    known = gpu._done(path)
    assert gpu._without(["G1", "G2", "G3"], known) == ["G3"]
    assert known["G1"]["micros"] == {"fused": 2.0}
    monkeypatch.setattr(gpu, "_versions", lambda: {"mcfuser": "b", "torch": "2"})
    assert gpu._done(path) == {}


def test_suites_hold_what_the_papers_measure() -> None:
    assert len(workloads("tables")) == 21 and len(workloads("neptune")) == 30
    decode = workloads("neptune")["gqa decode 8192"]
    assert decode.attention is not None and not decode.attention.masked
    assert decode.chain.shape("Q") == (8, 8, 1, 128)
    windowed = workloads("neptune")["window 512"].chain.operator("R")
    assert windowed.domain is not None and "n + 256" in str(windowed)


def extents(suite: str) -> set[tuple[int, ...]]:
    every = (w.chain for w in workloads(suite).values())
    return {tuple(c.size(a.name) for a in c.axes) for c in every}


def test_shapes_are_what_the_papers_leave_out() -> None:
    found = workloads("shapes")
    assert len(found) == 30 and {w.group for w in found.values()} == {
        "products", "attention", "masked attention", "norms",
    }  # fmt: skip
    known = extents("tables") | extents("neptune")
    assert not known & extents("shapes")
    norm = found["norm-projection 100"].chain
    assert (norm.shape("X"), "2048.0" in str(norm)) == ((100, 2048), True)


def test_the_float32_suite_rounds_nothing() -> None:
    found = workloads("float32")
    assert {w.group for w in found.values()} == {"products", "attention", "decode"}
    assert len(found) == 25
    for w in found.values():
        assert {t.dtype for t in w.chain.tensors} == {"float32"}
        assert "float16" not in str(w.chain)


def test_every_suite_says_how_many_workloads_are_timed_together() -> None:
    assert gpu.SLICE.keys() == SUITES.keys()
