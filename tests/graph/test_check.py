"""The check sees both agreement and difference, and its inputs are ones a model can take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.cpu import probe_cpu
from mcfuser.errors import InputError
from mcfuser.graph.assemble import install
from mcfuser.graph.check import check, difference, inputs
from mcfuser.graph.load import load
from tests.support.driver import has_driver
from tests.support.paths import FIXTURES


def test_a_module_agrees_with_its_model_and_not_with_another(tmp_path: Path) -> None:
    model = (FIXTURES / "linear_transposed.onnx").read_bytes()
    (tmp_path / "module.so").write_bytes(
        build_library(install(load(model, {}).module, []), probe_cpu())
    )
    same = check(tmp_path, model, {}, seed=1)
    assert same.error < 1e-6
    assert same.seconds > 0
    assert same.reference_seconds > 0
    changed = onnx.load_from_string(model)
    weight = next(w for w in changed.graph.initializer if len(w.dims) == 1 and w.dims[0] == 40)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    assert check(tmp_path, changed.SerializeToString(), {}, seed=1).error > 1e-2


def test_a_folder_without_a_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no compiled module"):
        check(tmp_path, (FIXTURES / "no_product.onnx").read_bytes(), {})


def test_a_module_that_does_not_load_is_reported(tmp_path: Path) -> None:
    (tmp_path / "module.so").write_bytes(b"not a library")
    with pytest.raises(InputError, match="does not run"):
        check(tmp_path, (FIXTURES / "no_product.onnx").read_bytes(), {})


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_a_module_for_a_gpu_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "module.so").write_bytes(b"")
    with pytest.raises(InputError, match=r"TVM cannot use a GPU here: libcuda.+NVIDIA's driver"):
        check(tmp_path, (FIXTURES / "no_product.onnx").read_bytes(), {}, mode="graph")


def test_inputs_stay_within_the_smallest_table() -> None:
    tables = [
        numpy_helper.from_array(np.zeros((rows, 2), np.float32), f"t{rows}") for rows in (50, 7)
    ]
    nodes = [
        helper.make_node("Gather", ["t50", "ids"], ["a"]),
        helper.make_node("Unsqueeze", ["ids", "axes"], ["wide"]),
        helper.make_node("Gather", ["t7", "wide"], ["b"]),
        helper.make_node("Cast", ["mask"], ["c"], to=1),
    ]
    ports = [helper.make_tensor_value_info(n, 7, (4, 64)) for n in ("ids", "mask")]
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(nodes, "g", ports, [], [*tables, axes])
    feeds = inputs(helper.make_model(graph), np.random.default_rng(0))
    assert feeds["ids"].max() == 6
    assert set(np.unique(feeds["mask"])) == {0, 1}
    assert (feeds["mask"][:, 0] == 1).all()


def test_difference_is_relative_and_knows_what_is_no_number() -> None:
    one = np.array([3.0, 4.0], np.float32)
    assert difference(one * 1.1, one) == pytest.approx(0.1, rel=1e-5)
    holes = np.array([np.nan, 1.0, np.inf])
    assert difference(holes, holes) == 0
    assert difference(np.array([0.0, 1.0, np.inf]), holes) == 0
    assert difference(np.array([0.5, 1.0, np.inf]), holes) == float("inf")
    assert difference(holes, np.array([0.0, 1.0, np.inf])) == float("inf")
    assert difference(one[:1], one) == float("inf")
