"""The check sees both agreement and difference, on random inputs and on a file's."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.cpu import probe_cpu
from mcfuser.errors import InputError, KilledError
from mcfuser.graph import check as graph_check
from mcfuser.graph.assemble import install
from mcfuser.graph.check import answering, check, model_tolerance
from mcfuser.graph.draw import inputs
from mcfuser.graph.load import bound, load
from mcfuser.graph.running import ran, running
from mcfuser.graph.weights import OnnxModel
from mcfuser.measure.tolerance import difference, numberless
from mcfuser.process.death import Death
from mcfuser.process.supervised import Supervised
from mcfuser.runtime.runner import MACHINE
from tests.support.driver import has_driver
from tests.support.nets import Net
from tests.support.paths import FIXTURES


def test_a_module_agrees_with_its_model_and_not_with_another(tmp_path: Path) -> None:
    model = (FIXTURES / "linear_transposed.onnx").read_bytes()
    (tmp_path / "module.so").write_bytes(
        build_library(install(load(model, {}).module, []), probe_cpu())
    )
    same = check(tmp_path, model, {}, seed=1)
    assert same.error < 1e-6
    assert same.agrees
    assert same.seconds > 0
    assert same.reference_seconds is not None and same.reference_seconds > 0
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


def test_a_module_whose_process_is_killed_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(child: Supervised, until: float) -> Death:
        os.kill(child.pid, signal.SIGKILL)
        return child.death()

    monkeypatch.setattr("mcfuser.graph.running._ready", killed)
    (tmp_path / "module.so").write_bytes(b"a library")
    with pytest.raises(KilledError, match="try again"), running(tmp_path, {}, "host"):
        pass


def test_the_time_of_each_function_is_told(tmp_path: Path) -> None:
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    (tmp_path / "module.so").write_bytes(
        build_library(install(load(model, {}).module, []), probe_cpu())
    )
    feeds = inputs(bound(model, {}), np.random.default_rng(0))
    with running(tmp_path, feeds, "host") as child:
        found = child.functions()
        seconds = child.again()
    assert found is not None and not any(f.tuned for f in found)
    assert [f.seconds for f in found] == sorted((f.seconds for f in found), reverse=True)
    names = {f.name: f for f in found}
    assert MACHINE in names and sum("matmul" in name for name in names) >= 2
    assert all(f.calls >= 1 and 0 < f.seconds < 1 + 100 * seconds for f in found)


def test_what_a_module_calls_is_there_without_tvm_s_compiler(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        g (float[4, 9] x) => (float[4, 3] y, int64[4, 3] at) <int64[1] k = {3}> {
            y, at = TopK(x, k)
        }
    """)
    model = proto.SerializeToString()
    module = install(load(model, {}).module, [])
    (tmp_path / "module.so").write_bytes(build_library(module, probe_cpu()))
    assert set(check(tmp_path, model, {}).errors.values()) == {0.0}


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_a_module_for_a_gpu_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "module.so").write_bytes(b"")
    with pytest.raises(InputError, match=r"TVM cannot use a GPU here: libcuda.+NVIDIA's driver"):
        check(tmp_path, (FIXTURES / "no_product.onnx").read_bytes(), {}, mode="graph")


def test_what_is_compared_may_come_from_a_file(tmp_path: Path) -> None:
    model = (FIXTURES / "linear_transposed.onnx").read_bytes()
    (tmp_path / "module.so").write_bytes(
        build_library(install(load(model, {}).module, []), probe_cpu())
    )
    (port,) = load(model, {}).inputs
    path = tmp_path / "given.npz"
    np.savez(path, **{port.name: np.zeros(port.shape, np.float32)})
    zeros = check(tmp_path, model, {}, given=path)
    assert zeros.agrees and zeros.error < 1e-6
    (found,) = zeros.ran.outputs.values()
    rows = found.reshape(-1, found.shape[-1])
    assert (rows == rows[0]).all(), "of rows of zeros, only the bias is left"
    random = check(tmp_path, model, {}, seed=1).ran.outputs
    assert list(random) == list(zeros.ran.outputs)
    assert difference(*random.values(), found) > 1e-2


def test_a_model_that_onnxruntime_cannot_run_on_these_inputs_is_told(tmp_path: Path) -> None:
    """An index outside of its table, which mcfuser reads as the table's last row."""
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        g (int64[3] ids) => (float[3, 2] y) <float[4, 2] table = {0, 1, 2, 3, 4, 5, 6, 7}>
        { y = Gather (table, ids) }""")
    model = proto.SerializeToString()
    (tmp_path / "module.so").write_bytes(
        build_library(install(load(model, {}).module, []), probe_cpu())
    )
    assert check(tmp_path, model, {}).agrees
    path = tmp_path / "given.npz"
    np.savez(path, ids=np.array([0, 1, 4]))
    with pytest.raises(InputError, match="onnxruntime cannot run the model on these inputs"):
        check(tmp_path, model, {}, given=path)


def test_a_module_with_other_outputs_is_told(tmp_path: Path) -> None:
    model = (FIXTURES / "linear_transposed.onnx").read_bytes()
    loaded = load(model, {})
    (tmp_path / "module.so").write_bytes(build_library(install(loaded.module, []), probe_cpu()))
    feeds = {p.name: np.zeros(p.shape, np.float32) for p in loaded.inputs}
    assert ran(tmp_path, feeds, ["y"], "host").seconds > 0
    with pytest.raises(InputError, match="has 1 outputs, where 2 are named"):
        ran(tmp_path, feeds, ["y", "z"], "host")


def test_difference_is_relative_and_knows_what_is_no_number() -> None:
    one = np.array([3.0, 4.0], np.float32)
    assert difference(one * 1.1, one) == pytest.approx(0.1, rel=1e-5)
    holes = np.array([np.nan, 1.0, np.inf])
    assert difference(holes, holes) == 0
    assert difference(np.array([0.0, 1.0, np.inf]), holes) == 0
    assert difference(np.array([0.5, 1.0, np.inf]), holes) == float("inf")
    assert difference(holes, np.array([0.0, 1.0, np.inf])) == float("inf")
    assert difference(one[:1], one) == float("inf")


def test_outputs_without_a_finite_number_are_named() -> None:
    holes, none = np.array([np.nan, 1.0]), np.array([np.nan, np.inf], np.float16)
    outputs = [holes, none, np.array([3]), np.array([True]), np.zeros((0,), np.float32)]
    assert numberless(["a", "b", "c", "d", "e"], outputs) == ("b",)


def test_what_is_below_the_normal_numbers_may_be_taken_for_zero() -> None:
    least = np.array([3e-39, -1e-40], np.float32)
    assert difference(np.zeros(2, np.float32), least) == 0
    assert difference(np.zeros(2, np.float32), least * 10) > 0.5


@pytest.mark.parametrize(
    ("graph", "passes"),
    [
        ("float[2] x) => (float[2] y) { y = Relu (x) }", 1e-4),
        ("float[2] x) => (float[2] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }", 2e-2),
        ("bfloat16[2] x) => (float[2] y) { y = Cast <to = 1> (x) }", 1e-1),
        ("float[2] x) => (uint8[2] y) { k = Constant <value_float = 0.1> ()"
         " y = QuantizeLinear (x, k) }", 5e-2),
        ("uint8[2] x) => (float[2] y) { k = Constant <value_float = 0.1> ()"
         " y = DequantizeLinear (x, k) }", 1e-4),
        ("float[1, 2] x) => (float[1, 2] y) { y = com.microsoft.QMoE <expert_weight_bits = 8>"
         "(x, r, w, s, b, v, t) }", 5e-2),
        ("float[1, 2] x) => (float[1, 2] y) { y = com.microsoft.QMoE <expert_weight_bits = 4>"
         "(x, r, w, s, b, v, t) }", 1e-4),
        ("int64[2] x) => (float[2, 16] y) <uint8[1, 8] t = {0, 1, 2, 3, 4, 5, 6, 7}, float[1, 1] s "
         "= {2}> { y = com.microsoft.GatherBlockQuantized (t, x, s) }", 1e-4),
    ],
)  # fmt: skip
def test_the_error_that_passes_is_that_of_the_coarsest_type(graph: str, passes: float) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 19, "com.microsoft": 1]> g ({graph}'
    )
    assert model_tolerance(model) == passes


def test_a_model_that_only_some_optimizations_break_is_run_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """onnxruntime merges a product and the scales of its columns, and cannot run what it made."""
    net = Net()
    x, weight = net.input("x", 1, 8), net.weight(8, 4)
    model = OnnxModel(net.model(net.op("MatMul", x, weight)))
    feeds, levels = {"x": np.ones((1, 8), np.float32)}, []
    real = graph_check.reference_session

    def fragile(
        model: OnnxModel, levels_: Sequence[object], exact: Sequence[str]
    ) -> onnxruntime.InferenceSession:
        levels.append(len(levels_))
        if len(levels_) > 1:
            raise InputError("broken")
        return real(model, levels_, exact)

    monkeypatch.setattr(graph_check, "reference_session", fragile)
    _, (found,) = answering(model, feeds)
    assert levels == [3, 2, 1]
    np.testing.assert_allclose(found, feeds["x"] @ numpy_helper.to_array(net.weights[0]), rtol=1e-5)
    monkeypatch.setattr(graph_check, "reference_session", Mock(side_effect=InputError("gone")))
    with pytest.raises(InputError, match="gone"):
        answering(model, feeds)


@pytest.mark.parametrize(("quantized", "asked"), [(True, ["1", "0"]), (False, ["1"])])
def test_onnxruntime_is_timed_as_it_runs_by_itself(
    quantized: bool, asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a module is compared with has exact sums of bytes, which take onnxruntime longer."""
    net = Net()
    x, scale = net.input("x", 4, 8), net.weight(1)
    if quantized:
        x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, scale), scale)
    model = net.model(net.op("MatMul", x, net.weight(8, 8))).SerializeToString()
    (tmp_path / "module.so").write_bytes(
        build_library(install(load(model, {}).module, []), probe_cpu())
    )
    sums, real = [], graph_check.session

    def told(model: OnnxModel, options: onnxruntime.SessionOptions, usual: bool) -> object:
        sums.append(options.get_session_config_entry("session.x64quantprecision"))
        assert usual == (sums == ["1", "0"])
        return real(model, options, usual=usual)

    monkeypatch.setattr(graph_check, "session", told)
    found = check(tmp_path, model, {}, seed=1)
    assert sums == asked and found.reference_seconds is not None and found.agrees
