"""`mcfuser run`: arrays in and out, and how far they are from onnxruntime's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.cli.run import _shapes, told
from mcfuser.errors import InputError
from mcfuser.graph.check import Checked
from mcfuser.graph.running import Ran
from tests.support.command import mcfuser
from tests.support.paths import FIXTURES

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


def test_it_is_said_where_an_output_has_no_number_to_compare() -> None:
    done = Ran({"y": np.full((2, 3), np.nan, np.float32)}, 1e-3)
    _, said, _ = told(done, Checked({"y": 0.0}, 1e-4, done, 2e-3, ("y",)))
    assert said.startswith("  'y' has no number on these inputs, nor has it in onnxruntime: ")


RANGED = {
    "shapes": {"batch": ["1..4"], "ids": ["1..4", 8]},
    "inputs": [{"name": "ids"}, {"name": "mask"}],
    "extents": [{"name": "batch", "low": 1, "high": 4, "places": [["ids", 0], ["mask", 0]]}],
}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("batch=5", "dimension 'batch' is 5; the module takes 1 to 4"),
        ("mask=5x8", "dimension 0 of input 'mask' is 5; the module takes 1 to 4"),
    ],
)
def test_extents_outside_of_the_module_s_are_told_by_dimension_or_input(
    words: str, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        _shapes(RANGED, None, [words])


def test_an_input_that_is_called_as_a_dimension_has_an_extent_of_its_own() -> None:
    report = RANGED | {"inputs": [{"name": "ids"}, {"name": "mask"}, {"name": "batch"}]}
    assert _shapes(report, None, ["batch=5", "ids=2x8"]) == {"batch": (5,), "ids": (2, 8)}
