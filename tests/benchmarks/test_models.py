"""The benchmark of whole models: figures and tables, and a tiny model from torch to its times."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from mcfuser.tune.key import CacheKey
from models_cache import FolderCache
from models_spent import TUNED_ON_GPU, TUNED_ON_HOST, divided, one_by_one
from models_table import OWN, WHOLE, best, kernels, outside, spread, table
from tests.support.kernels import tuned
from tests.support.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "models.py"


def recorded(name: str, times: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    return {
        "name": name, "missing": {}, "errors": {OWN: 1e-3},
        "times": {n: spread(t, times.get(OWN)) for n, t in times.items()}, **more,
    }  # fmt: skip


def document(*records: dict[str, Any]) -> dict[str, Any]:
    return {"device": "cpu", "precision": "float32", "date": "2026-01-01", "machine": "2 cores",
            "versions": {"torch": "2"}, "models": list(records)}  # fmt: skip


def test_ratios_are_of_rounds_not_of_medians() -> None:
    made = spread([2.0, 8.0, 8.0], [1.0, 2.0, 4.0])
    assert made["seconds"][1] == 8.0
    assert made["ratio"][1] == 2.0
    assert "ratio" not in spread([1.0], None)


def test_the_best_peer_is_compared() -> None:
    times = {OWN: [1e-3] * 3, "torch": [4e-3] * 3, "onnxruntime": [2e-3] * 3}
    assert best(recorded("a", times)) == "onnxruntime"
    assert (
        "| a | 1 (1 .. 1) | 4 (4 .. 4) | 2 (2 .. 2) | **2.00** (2.00 .. 2.00), onnxruntime |"
        in (table(document(recorded("a", times))))
    )
    del times[OWN]
    assert best(recorded("a", times)) is None


def test_a_failure_is_a_line_with_its_reason() -> None:
    lost = {"name": "b", "missing": {WHOLE: "its process ended with -11"}}
    one = recorded("a", {OWN: [1e-3]}) | {"missing": {"OpenVINO": "it is not installed"}}
    text = table(document(one, lost))
    assert "| b | - | - | - | - | - |" in text
    assert "- b, model: its process ended with -11" in text
    assert "- a, OpenVINO: it is not installed" in text


def test_kernels_are_counted_by_what_they_are() -> None:
    one, two = {"name": "x"}, [{"name": "x"}, {"name": "y"}]
    chains = [
        {"kernels": [one], "fused": True, "places": ["a", "b"]},
        {"kernels": two, "fused": False, "places": ["c"]},
        {"kernels": [one], "fused": False, "places": ["d"]},
        {"kernels": [], "fused": False, "places": ["e", "f", "g"]},
    ]
    assert kernels(chains) == {"fused": 2, "apart": 2, "single": 1, "left to TVM": 3}


def test_kernels_are_kept_in_a_folder_and_damaged_files_are_not_read(tmp_path: Path) -> None:
    made = CacheKey("c", "d", "mcfuser", True, "", (("tvm", "0.27"),), "s")
    one = replace(tuned("k"), made=made)
    FolderCache(tmp_path).put(one)
    again = FolderCache(tmp_path)
    assert again.get(one.key) == one and again.get("0" * 64) is None
    assert again.keys_of(one.chain.key) == [made]
    (path,) = tmp_path.rglob("*.json")
    path.write_text(path.read_text().replace(one.expression, "", 1))
    assert FolderCache(tmp_path).get(one.key) is None
    assert FolderCache(tmp_path).keys_of(one.chain.key) == []


def test_results_of_the_same_versions_stay_and_others_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models.json"
    monkeypatch.setattr(models, "_versions", lambda host: {"torch": "2"})
    first = models._begun(path, "cpu", "float32", True)
    models._write(path, models._with(first, recorded("a", {OWN: [1e-3]})))
    kept = models._begun(path, "cpu", "float32", True)
    assert [r["name"] for r in models._with(kept, {"name": "b"})["models"]] == ["a", "b"]
    assert [r["name"] for r in models._with(kept, {"name": "a"})["models"]] == ["a"]
    assert models._begun(path, "cpu", "float16", True)["models"] == []
    monkeypatch.setattr(models, "_versions", lambda host: {"torch": "3"})
    assert models._begun(path, "cpu", "float32", True)["models"] == []


def test_time_is_divided_by_the_names_of_what_was_tuned() -> None:
    seconds = {"chain_a_0": 6.0, "take": 1.0, "vm.builtin.alloc_storage": 1.0}
    found = divided(seconds, {"chain_a_0": 4, "take": 2, "vm.builtin.alloc_storage": 2}, 2,
                    TUNED_ON_HOST)  # fmt: skip
    assert found["outside_share"] == 0.25
    assert (found["chains"]["seconds"], found["chains"]["calls"]) == (3.0, 2)
    assert found["outside"]["longest"][0] == {"name": "take", "seconds": 0.5, "calls": 1}
    assert TUNED_ON_GPU.match(f"kernel_{'0a' * 8}_combine")
    assert not TUNED_ON_GPU.match("kernel_cutlass")


def test_a_kernel_that_started_while_another_ran_waited_for_it() -> None:
    ran = [("b", 1.0, 6.0), ("a", 0.0, 4.0), ("a", 8.0, 9.0), ("inside", 8.5, 8.75)]
    assert one_by_one(ran) == {"a": 5.0, "b": 2.0, "inside": 0.0}


def test_contenders_take_turns_and_calls_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import models_contenders
    from models_contenders import Contender, TurnLimits, timed_in_turns

    clock, called = [0.0], list[str]()
    monkeypatch.setattr(models_contenders.time, "perf_counter", lambda: clock[0])

    def taking(name: str, seconds: float) -> Contender:
        def call() -> None:
            called.append(name)
            clock[0] += seconds

        return Contender(list, call)

    made = {"a": taking("a", 1.0), "b": taking("b", 3.0)}
    times = timed_in_turns(made, TurnLimits(2, 3.0, 0.0))
    assert times == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    # one call to wake up, then as many as a sample needs; the second round begins with the other
    assert "".join(called)[-12:] == "aaaabb" + "bbaaaa"


def test_a_decoder_with_a_cache_goes_on_where_a_prefill_ended() -> None:
    """Decoding one token after cached ones gives the last row of a prefill."""
    torch = pytest.importorskip("torch")
    from models_layers import DecoderLayer, DecoderShape

    shape = DecoderShape(32, 4, 2, 64)
    torch.manual_seed(0)
    whole, last = DecoderLayer(shape, 9), DecoderLayer(shape, 1, 8)
    weights = {n: w for n, w in whole.state_dict().items() if n not in ("cosine", "sine")}
    last.load_state_dict(weights, strict=False)
    x = torch.randn(1, 9, 32)
    with torch.no_grad():
        every, keys, values = whole(x)
        one, key, _ = last(x[:, 8:], keys[:, :, :8], values[:, :, :8])
    np.testing.assert_allclose(one[:, 0], every[:, 8], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(key, keys[:, :, 8:], rtol=1e-4, atol=1e-5)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)


def test_a_name_that_is_not_known_is_said() -> None:
    pytest.importorskip("torch")
    made = run("--only", "bort")
    assert made.returncode == 1 and "model 'bort' is not known; use bert-base-128" in made.stderr
    made = run("--device", "abacus")
    assert made.returncode == 1 and "device 'abacus' is not known" in made.stderr


def test_a_tiny_model_is_compiled_checked_and_timed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "found.json"
    made = run(
        "--only", "tiny", "--timeout", "1", "--peers", "onnxruntime,OpenVINO", "-o", str(path)
    )
    assert made.returncode == 0, made.stderr
    (record,) = json.loads(path.read_text())["models"]
    assert {OWN, "onnxruntime"} <= record["times"].keys() <= {OWN, "onnxruntime", "OpenVINO"}
    assert record["errors"][OWN] < 1e-4
    assert 0 < record["spent"]["outside_share"] < 1
    assert record["lifted"]["products"] == record["lifted"]["covered"] == 6
    assert re.search(r"^\| tiny \| [0-9]", path.with_suffix(".md").read_text(), re.MULTILINE)
    again = {**json.loads(path.read_text()), "models": [record]}
    assert "- 1 x take float32[1, 32, 64]" in outside(again)
