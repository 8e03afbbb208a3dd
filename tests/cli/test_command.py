"""The command: what it prints, and its one sentence where the user errs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.graph.load import input_ports
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


@pytest.mark.parametrize("command", ["compile", "bisect", "explain"])
def test_an_unknown_precision_is_refused(command: str, tmp_path: Path) -> None:
    model = str(FIXTURES / "escaping.onnx")
    more = ("-o", str(tmp_path / "out")) if command == "compile" else ()
    ran = mcfuser(command, model, "--precision", "fp8", *more, data=tmp_path)
    assert ran.returncode == 2 and not (tmp_path / "out").exists()
    assert ran.stderr == "mcfuser: precision 'fp8' is not known; use fp16, bf16 or tf32\n"


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
