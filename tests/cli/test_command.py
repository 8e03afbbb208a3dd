"""The command: what it prints, what it writes, and its one sentence where the user errs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.cli.run import told
from mcfuser.graph.check import Checked
from mcfuser.graph.load import input_ports
from mcfuser.graph.running import Ran
from tests.support.caches import MODELS
from tests.support.command import mcfuser, mcfuser_anew
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


def test_explain_tells_of_every_operator_of_a_model(tmp_path: Path) -> None:
    """Every reshape and transpose before the two products is a view of what is read."""
    model = str(FIXTURES / "attention_where.onnx")
    told = mcfuser("explain", model, "--device", "h200", data=tmp_path)
    assert told.returncode == 0, told.stderr
    first, _, head, *rows = told.stdout.splitlines()
    assert first.startswith("18 operators, 9 of them in 2 regions; times are predicted for nvidia/")
    assert head.split() == ["region", "at", "saves", "fused", "in", "pieces", "operators"]
    assert all(
        row[head.index("saves") :].startswith(("0 bytes", "24,576 bytes")) for row in rows[:2]
    )
    assert any("Softmax_15" in row and row.endswith(" 2") for row in rows)
    assert any("Transpose_9" in row and "none: not computed" in row for row in rows)
    document = json.loads(
        mcfuser("explain", model, "--device", "h200", "--json", data=tmp_path).stdout
    )
    assert [r["pieces"] for r in document["regions"]] == [1, 3] and len(document["operators"]) == 18


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


def test_a_precision_is_told_with_the_error_of_every_output(tmp_path: Path) -> None:
    """`run --check` knows the tolerance from the report; explain and bisect take the option."""
    model, out = str(FIXTURES / "escaping.onnx"), tmp_path / "out"
    words = ("--precision", "fp16", "--trials", "1", "--no-cache")
    ran = mcfuser("compile", model, "-o", str(out), *words, data=tmp_path)
    assert ran.returncode == 0, ran.stderr
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


@pytest.mark.parametrize("command", ["compile", "bisect", "explain"])
def test_an_unknown_precision_is_refused(command: str, tmp_path: Path) -> None:
    model = str(FIXTURES / "escaping.onnx")
    more = ("-o", str(tmp_path / "out")) if command == "compile" else ()
    ran = mcfuser(command, model, "--precision", "fp8", *more, data=tmp_path)
    assert ran.returncode == 2 and not (tmp_path / "out").exists()
    assert ran.stderr == "mcfuser: precision 'fp8' is not known; use fp16 or bf16\n"


def test_bisect_compares_every_value_on_given_inputs(tmp_path: Path) -> None:
    model, given = str(FIXTURES / "feed_forward_relu.onnx"), tmp_path / "given.npz"
    np.savez(given, other=np.ones(3))
    words = ("bisect", model, "--trials", "1", "--no-cache", "--inputs", str(given))
    wrong = mcfuser(*words, data=tmp_path)
    assert wrong.returncode == 2 and "have no array for input 'x'" in wrong.stderr
    (port,) = input_ports(onnx.load(model))
    np.savez(given, x=np.ones(port.shape, np.float32))
    ran = mcfuser(*words, "--json", data=tmp_path)
    document = json.loads(ran.stdout)
    assert document == {"compared": 1, "first": None, "without_kernels": None, "masked": []}


RESULTS = {"module": "module.so", "report": "report.json"}


def test_run_takes_arrays_and_gives_arrays(tmp_path: Path) -> None:
    """With the model they are compared with onnxruntime's; the report's inputs do without it."""
    model, out = str(FIXTURES / "linear_transposed.onnx"), tmp_path / "out"
    words = ("compile", model, "-o", str(out), "--trials", "1", "--no-cache", "--json")
    ran = mcfuser(*words, data=tmp_path)
    assert ran.returncode == 0, ran.stderr
    printed, report = json.loads(ran.stdout), json.loads((out / "report.json").read_text())
    assert printed == {
        "files": {name: str(out / file) for name, file in RESULTS.items()}, "report": report
    }  # fmt: skip
    assert any(line.startswith("measure chain 1 of 1") for line in ran.stderr.splitlines())
    (port,) = report["inputs"]
    given, results = tmp_path / "given.npz", tmp_path / "results.npz"
    np.savez(given, **{port["name"]: np.ones(port["shape"], np.float32)})
    words = ("run", str(out), "--inputs", str(given), "--outputs", str(results))
    alone = mcfuser(*words, "--json", data=tmp_path)
    assert alone.returncode == 0, alone.stderr
    document = json.loads(alone.stdout)
    assert document["mcfuser_seconds"] > 0 and "error" not in document
    with np.load(results) as stored:
        first = {name: stored[name] for name in stored.files}
    assert {n: list(a.shape) for n, a in first.items()} == {
        n: o["shape"] for n, o in document["outputs"].items()
    }
    compared = mcfuser(*words, "--check", model, data=tmp_path)
    assert "of its time" in compared.stdout and f"wrote {results}" in compared.stdout
    with np.load(results) as stored:
        assert all((stored[name] == first[name]).all() for name in first)
    other, changed = tmp_path / "other.onnx", onnx.load(model)
    weight = next(w for w in changed.graph.initializer if w.data_type == onnx.TensorProto.FLOAT)
    doubled = 2 * onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(doubled, weight.name))
    onnx.save(changed, other)
    differs = mcfuser("run", str(out), "--check", str(other), data=tmp_path)
    assert differs.returncode == 1 and "they differ" in differs.stdout
    np.savez(given, other=np.ones(3))
    wrong = mcfuser(*words, data=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    assert f"have no array for input '{port['name']}'" in wrong.stderr
    (out / "report.json").unlink()
    assert "there is no report in" in mcfuser(*words, data=tmp_path).stderr


def test_a_time_on_a_gpu_is_not_set_beside_one_of_the_cpu() -> None:
    done = Ran({"y": np.zeros((2, 3), np.float32)}, 1e-3)
    error, here = told(done, Checked({"y": 1e-7}, 1e-4, done, 2e-3))
    assert error == "norm-wise relative error against onnxruntime: 1.0e-07"
    assert here == "mcfuser 1.000 ms, onnxruntime 2.000 ms: 0.50 of its time"
    error, there = told(done, Checked({"y": 1e-3}, 1e-4, done, None))
    assert error.endswith("1.0e-03, more than 1e-04: they differ")
    assert there.startswith(
        "mcfuser 1.000 ms on the GPU; onnxruntime computed the model on the CPU"
    )
    assert [*told(done, None)] == ["y: float32 2x3", "mcfuser 1.000 ms"]


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
        (("explain", "nowhere.onnx"), "model 'nowhere.onnx' cannot be read"),
        (("explain", "gemm:1,2,3,4,5", "--shape", "x=1"), "--shape is for a model, and 'gemm:1,2,"),
        (("run", "nowhere"), "there is nothing to run the module on; give arrays with --inputs"),
        (("run", "nowhere", "--inputs", "none.npz"), "inputs 'none.npz' cannot be read: No such"),
        (("run", "nowhere", "--inputs", __file__), "there is no report in 'nowhere'"),
        (("run", "nowhere", "--check", "none.onnx"), "model 'none.onnx' cannot be read"),
        (("run", "nowhere", "--check", __file__), "there is no compiled module at 'nowhere'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    ran = mcfuser(*words, data=tmp_path)
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr and ran.stderr.count("\n") == 1


def test_a_server_tells_its_address_as_a_document(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "mcfuser.cli", "serve", "--port", "0", "--json")
    environment = {**os.environ, "MCFUSER_DATA": str(tmp_path / "data"), "MCFUSER_WORKERS": "0"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        document = json.loads(server.stdout.readline())
        assert document["data"] == str(tmp_path / "data")
        with urllib.request.urlopen(f"{document['url']}/v1/jobs") as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0 and server.stdout.read() == ""
        assert "serving on" in server.stderr.read()


def test_a_model_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "words.onnx").write_bytes(b"not a model at all")
    for name in ("empty", "words"):
        path = tmp_path / f"{name}.onnx"
        ran = mcfuser("compile", str(path), "-o", str(tmp_path / "out"), data=tmp_path)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
