"""The command: what it prints, what it writes, and its one sentence where the user errs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import mcfuser
from tests.support.paths import FIXTURES


def test_space_counts_as_the_paper_does(tmp_path: Path) -> None:
    ran = mcfuser("space", "gemm:1,1024,1024,512,512", "--json", data=tmp_path)
    found = json.loads(ran.stdout)
    assert found["expressions"] == 26 and found["candidates"] == 109_051_904
    assert [found["after"][r]["expressions"] for r in ("rule1", "rule2", "rule3")] == [5, 3, 3]
    assert found["after"]["rule3"]["candidates"] == 5292
    assert 0 < found["after"]["rule4"]["candidates"] < 5292


def test_explain_derives_the_online_softmax(tmp_path: Path) -> None:
    ran = mcfuser("explain", "attention:8,512,512,64,64", data=tmp_path)
    assert "U <- exp2(R_old[b, m] - R[b, m]) * U[b, m, h]" in ran.stdout
    assert "mh(L_Q,n(L_K,C_S,C_R,C_P,C_Z,L_V,C_U),C_O,S_O)" in ran.stdout


def test_compile_run_and_the_cache(tmp_path: Path) -> None:
    model = str(FIXTURES / "attention_divide_after.onnx")
    out = tmp_path / "out"
    ran = mcfuser(
        "compile", model, "-o", str(out), "--trials", "2", "--timeout", "1h", data=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads((out / "report.json").read_text())
    assert report["times"] == "measured"
    again = mcfuser("compile", model, "-o", str(out), "--trials", "2", data=tmp_path)
    assert again.returncode == 0
    assert "measure chain" not in again.stderr
    checked = mcfuser("run", str(out), "--check", model, "--json", data=tmp_path)
    assert json.loads(checked.stdout)["error"] <= 1e-5


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("space", "gemm:1,2,3"), "is neither gemm:batch,M,N,K,H nor attention"),
        (("space", "nowhere.json"), "chain file 'nowhere.json' cannot be read"),
        (("space", "gemm:1,2,3,4,5", "--device", "abacus"), "device 'abacus' is not known"),
        (("tune", "gemm:1,2,3,4,5", "--timeout", "soon"), "timeout 'soon' is not a time"),
        (("compile", "nowhere.onnx", "-o", "out"), "model 'nowhere.onnx' cannot be read"),
        (("run", "nowhere", "--check", __file__), "there is no compiled module at 'nowhere'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    ran = mcfuser(*words, data=tmp_path)
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr and ran.stderr.count("\n") == 1


def test_a_model_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "words.onnx").write_bytes(b"not a model at all")
    for name in ("empty", "words"):
        path = tmp_path / f"{name}.onnx"
        ran = mcfuser("compile", str(path), "-o", str(tmp_path / "out"), data=tmp_path)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
