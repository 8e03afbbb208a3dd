"""`mcfuser compile`: what it writes and says, and that what it made runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from tests.support.caches import MODELS
from tests.support.command import mcfuser, mcfuser_anew
from tests.support.paths import FIXTURES


def test_compile_run_and_the_cache(tmp_path: Path) -> None:
    model = str(FIXTURES / "attention_divide_after.onnx")
    out = tmp_path / "out"
    ran = mcfuser_anew(
        "compile", model, "-o", str(out), "--trials", "2", "--timeout", "1h", data=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads((out / "report.json").read_text())
    assert report["times"] == "measured"
    assert report["check"]["error"] <= report["check"]["tolerance"] == 1e-4
    assert "agrees with onnxruntime on random inputs: error" in ran.stdout
    words = ("compile", model, "-o", str(out), "--trials", "2", "--no-check")
    again = mcfuser(*words, data=tmp_path)
    assert again.returncode == 0
    assert "not compared with onnxruntime: not asked for" in again.stdout
    assert "measure chain" not in again.stderr
    checked = mcfuser("run", str(out), "--check", model, "--json", data=tmp_path)
    assert json.loads(checked.stdout)["error"] <= 1e-5


def compiled(model: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ran = mcfuser("compile", model, "-o", str(out), *words, data=out.parent)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.thorough
def test_a_precision_is_told_with_the_error_of_every_output(tmp_path: Path) -> None:
    """`run --check` knows the tolerance from the report; explain and bisect take the option."""
    model, out = str(FIXTURES / "escaping.onnx"), tmp_path / "out"
    words = ("--precision", "fp16", "--trials", "1", "--no-cache")
    ran = compiled(model, out, *words)
    counts = "products of float16 operands: 2, left in float32: 0; other operators in float32: 0"
    assert f"{counts}\nthis CPU widens narrow values" in ran.stdout
    report = json.loads((out / "report.json").read_text())
    for name, error in report["check"]["outputs"].items():
        assert f"  {name}: error {error:.1e} against the float32 model\n" in ran.stdout
    checked = mcfuser("run", str(out), "--check", model, "--json", data=tmp_path)
    assert checked.returncode == 0, checked.stderr
    document = json.loads(checked.stdout)
    assert document["tolerance"] == 2e-2 and document["error"] > 0
    told = mcfuser("run", str(out), "--check", model, data=tmp_path).stdout
    assert all(f"\n  {name}: " in told for name in document["errors"])
    explained = mcfuser("explain", model, "--precision", "bf16", data=tmp_path)
    assert "bfloat16 " in explained.stdout, explained.stderr
    bisected = mcfuser("bisect", model, *words, data=tmp_path)
    agree = r"all \d+ values that the module stores agree\n"
    assert re.fullmatch(agree, bisected.stdout), bisected.stderr


def test_a_cpu_multiplies_what_a_gpu_may_round(tmp_path: Path) -> None:
    model, out = str(FIXTURES / "escaping.onnx"), tmp_path / "out"
    ran = compiled(model, out, "--precision", "tf32", "--trials", "1", "--no-cache")
    counts = "products whose operands may be rounded to TF32: 2; other operators in float32: 1\n"
    assert counts in ran.stdout
    assert "cpu multiplies float32 numbers as they are: tf32 changes nothing there\n" in ran.stdout
    checked = mcfuser("run", str(out), "--check", model, "--json", data=tmp_path)
    document = json.loads(checked.stdout)
    assert document["tolerance"] == 2e-2 and document["error"] <= 1e-5


def test_a_cache_is_updated_in_place_here_and_in_onnxruntime(tmp_path: Path) -> None:
    model, out = tmp_path / "decode.onnx", tmp_path / "out"
    onnx.save(MODELS["scattered, turned"].proto(), model)
    words = ("compile", str(model), "-o", str(out), "--trials", "1", "--no-cache")
    ran = mcfuser(*words, "--in-place", "past=present", data=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "'past' is updated in place: output 'present' is the same memory\n" in ran.stdout
    assert "agrees with onnxruntime" in ran.stdout
    checked = mcfuser("run", str(out), "--check", str(model), "--json", data=tmp_path)
    assert json.loads(checked.stdout)["error"] <= 1e-5, checked.stderr
    refused = mcfuser(*words, "--in-place", "past=scores", data=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.endswith(
        "the one is float32[2, 3, 8, 8], the other float32[2, 3, 8, 4]\n"
    )
    ranged = mcfuser(*words, "--in-place", "past=present", "--shape", "new=1x2..4", data=tmp_path)
    assert ranged.returncode == 2 and "at fixed shapes only" in ranged.stderr


def test_weights_beside_the_model_are_read_from_its_folder_alone(tmp_path: Path) -> None:
    """A model as torch's exporter of today writes it, and one whose weights were moved away."""
    for name in ("linear.onnx", "linear.onnx.data"):
        shutil.copy(FIXTURES / "external" / name, tmp_path)
    model, out = tmp_path / "linear.onnx", tmp_path / "out"
    words = ("compile", str(model), "-o", str(out), "--trials", "1", "--no-cache")
    ran = mcfuser(*words, data=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((out / "report.json").read_text())["external"] == ["linear.onnx.data"]
    checked = mcfuser("run", str(out), "--check", str(model), "--json", data=tmp_path)
    assert json.loads(checked.stdout)["error"] <= 1e-5
    (tmp_path / "linear.onnx.data").rename(out / "linear.onnx.data")
    (tmp_path / "linear.onnx.data").symlink_to("/dev/zero")
    for asked in (words, ("run", str(out), "--check", str(model))):
        ran = mcfuser(*asked, data=tmp_path)
        assert ran.returncode == 2
        assert "'0.weight' is kept in the external file 'linear.onnx.data', a link" in ran.stderr
        assert len(ran.stderr.splitlines()) <= 2  # a stage may stand before the sentence


def test_a_model_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "words.onnx").write_bytes(b"not a model at all")
    for name in ("empty", "words"):
        path = tmp_path / f"{name}.onnx"
        ran = mcfuser("compile", str(path), "-o", str(tmp_path / "out"), data=tmp_path)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
