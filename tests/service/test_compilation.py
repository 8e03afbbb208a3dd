"""Compiling in a process that is limited, and ended wherever it is."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.errors import LimitError, ModelError
from mcfuser.extents import ExtentRange
from mcfuser.tune.progress import Listener, Note, Progress
from mcfuser_db import Storage
from mcfuser_service.claim import Interrupted
from mcfuser_service.compilation import CompileRequest, CompileResult, compiled, start
from mcfuser_service.compiler import Compiler
from mcfuser_service.documents import Report
from mcfuser_service.schemas import JobOptions
from mcfuser_service.settings import ServiceSettings
from tests.support.archives import tarred
from tests.support.nets import Net
from tests.support.paths import FIXTURES
from tests.support.signatures import sha256

MODEL = FIXTURES / "attention_where.onnx"
MEMORY = 8 << 30


def compile_(model: Path, listener: Listener, **more) -> CompileResult:
    request = CompileRequest(model, "cpu", {"trials": 1}, {}, None, **more)
    return compiled(request, start(MEMORY), listener)


def test_a_model_is_compiled_and_its_stages_are_told() -> None:
    told: list[Progress | Note] = []
    artifact = compile_(MODEL, told.append)
    assert artifact.module[:4] == b"\x7fELF"
    assert artifact.report["chains"]
    assert {"import", "build", "done"} <= {p.stage for p in told if isinstance(p, Progress)}
    notes = [n.words for n in told if isinstance(n, Note)]
    assert len(set(notes)) == len(notes), "a note is told once, however often progress is"
    for chain in artifact.report["chains"]:
        assert any(f"'{chain['name']}'" in words for words in notes)


def test_ranges_of_extents_become_buckets_that_are_compared(tmp_path: Path) -> None:
    net = Net()
    rows = net.op("Gather", net.weight(50, 32), net.input("ids", "batch", "length", dtype=np.int64))
    model = net.model(net.op("Softmax", net.op("MatMul", rows, net.weight(32, 32)), axis=-1))
    onnx.save(model, tmp_path / "model.onnx")
    shapes = {"ids": (ExtentRange(1, 2), ExtentRange(2, 24))}
    request = CompileRequest(tmp_path / "model.onnx", "cpu", {"trials": 1}, shapes, None, buckets=2)
    report = compiled(request, start(MEMORY), lambda *_: None).report
    Report.model_validate(report, strict=True)  # as it is documented
    assert 1 <= len(report["buckets"]) <= 2
    batches = [s["extents"]["batch"] for s in report["check"]["shapes"]]
    assert sum(n <= 2 for n in batches) == 3 * len(report["buckets"])
    assert [n > 2 for n in batches].count(True) == 1  # which is computed in slices
    assert report["check"]["error"] <= 1e-5
    assert report["inputs"][0]["shape"] == [-1, -1]
    assert report["shapes"] == {"ids": ["1..2", "2..24"]} and report["model"]["external"] == {}
    assert {"built", "revision", "module"} <= set(report) and report["model"]["archive"] is None


def test_an_archive_is_compiled_as_the_folder_that_it_holds(tmp_path: Path) -> None:
    files = {f"a/{p.name}": p.read_bytes() for p in (FIXTURES / "external").iterdir()}
    posted = tarred(files, "w:gz")
    (tmp_path / "posted").write_bytes(posted)
    artifact = compile_(tmp_path / "posted", lambda *_: None)
    assert artifact.module[:4] == b"\x7fELF"
    model, weights = files["a/linear.onnx"], files["a/linear.onnx.data"]
    assert artifact.report["model"] == {
        "sha256": sha256(model), "bytes": len(model), "archive": sha256(posted),
        "external": {"linear.onnx.data": sha256(weights)},
    }  # fmt: skip
    assert artifact.report["module"]["sha256"] == sha256(artifact.module)
    assert artifact.report["external"] == ["linear.onnx.data"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["posted"]


def test_a_model_is_compiled_in_a_precision_and_its_errors_are_told() -> None:
    """In bfloat16; tests of the command ask for float16."""
    report = compile_(MODEL, lambda *_: None, precision="bf16").report
    assert report["precision"]["dtype"] == "bfloat16"
    assert report["precision"]["narrow_products"] == 3
    assert {p["dtype"] for p in report["products"]} == {"bfloat16"}
    check = report["check"]
    assert list(check["outputs"]) == [o["name"] for o in report["outputs"]]
    assert 0 < max(check["outputs"].values()) == check["error"] < check["tolerance"]
    assert [o["dtype"] for o in report["outputs"]] == ["float32"]
    Report.model_validate(report)


def test_a_mistake_comes_back_as_one(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"no model")
    with pytest.raises(ModelError, match="not ONNX"):
        compile_(tmp_path / "m", lambda *_: None)


def test_a_compile_whose_time_is_over_is_ended() -> None:
    with pytest.raises(LimitError, match=r"not compiled within 3 s: .* give it more time") as late:
        compile_(MODEL, lambda *_: None, timeout=3.0, begun=time.monotonic() - 100.0)
    assert late.value.what == "time"


def test_a_compile_has_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of a process that has TVM loaded would have more than that from its start."""
    monkeypatch.setattr("mcfuser.process.supervised.Popen", subprocess.Popen)
    request = CompileRequest(MODEL, "cpu", {}, {}, None)
    with pytest.raises(LimitError, match="MCFUSER_JOB_MEMORY") as short:
        compiled(request, start(64 << 20), lambda *_: None)
    assert short.value.what == "memory"


def test_a_job_s_options_reach_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CompileRequest] = []

    def noted(request: CompileRequest, process: object, listener: Listener) -> None:
        asked.append(request)

    monkeypatch.setattr("mcfuser_service.compiler.compiled", noted)
    settings = ServiceSettings(data=tmp_path)
    store, compiler = Storage(settings.database_url), Compiler(settings)
    for options in (JobOptions(), JobOptions(precision="bf16", in_place=["past=present"])):
        compiler(MODEL, options, store, lambda *_: None)
    compiler.stop()
    store.close()
    assert [request.precision for request in asked] == [None, "bf16"]
    assert [request.in_place for request in asked] == [{}, {"past": "present"}]


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["start", "import", "measure", "build"])
def test_a_job_is_ended_at_any_stage_and_the_next_one_is_done(when: str, tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path)
    store, compiler = Storage(settings.database_url), Compiler(settings)
    ready = compiler._next
    assert ready is not None

    def listener(told: Progress | Note) -> None:
        if isinstance(told, Progress) and told.stage == when:
            raise Interrupted

    with pytest.raises(Interrupted):
        compiler(MODEL, JobOptions(trials=1), store, listener)
    assert not ready.alive and not ready.scratch.exists()
    if when == "build":
        made = compiler(MODEL, JobOptions(trials=1), store, lambda *_: None)
        assert made.module[:4] == b"\x7fELF"
    compiler.stop()
    store.close()
