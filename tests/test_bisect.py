"""The first operator that differs is named, with what computes it, and nothing else is blamed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from tvm import relax

from mcfuser import compile as compiling
from mcfuser.bisect import CHECKING, Bisection, bisect, built_by, value_difference, verify
from mcfuser.compile import CompiledModel, compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import DisagreementError, InputError
from mcfuser.graph import lift, load
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.intermediate import computed_by_onnxruntime
from mcfuser.graph.load import bound
from mcfuser.graph.partition import Partition
from mcfuser.graph.weights import OnnxModel
from mcfuser.process.supervised import Supervised
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from tests.support.found_nets import found_net
from tests.support.nets import Net
from tests.support.paths import FIXTURES

CPU = device_named("cpu")
RELU = (FIXTURES / "feed_forward_relu.onnx").read_bytes()


@cache
def tuned() -> MemoryCache:
    """What one test has tuned, which others need not: they ask whether it is right."""
    return MemoryCache()


def compiled(model: bytes) -> CompiledModel:
    return compile_model(model, CPU, tuned(), TuneOptions(trials=1), {})


def bisected(model: bytes) -> Bisection:
    fixed = bound(model, {})
    return bisect(compiled(model).decided, fixed, inputs(fixed, np.random.default_rng(0)))


def importing(monkeypatch: pytest.MonkeyPatch, operator: str, made: Callable[[Any], Any]) -> None:
    """Has an operator of ONNX's imported as something else."""
    right = load._Importer._convert_operator

    def convert(self: Any, name: str, given: Any, attrs: Any, opset: int) -> Any:
        value = right(self, name, given, attrs, opset)
        return self.bb.emit(made(value)) if name == operator else value

    monkeypatch.setattr(load._Importer, "_convert_operator", convert)


def test_all_values_of_a_right_module_agree() -> None:
    found = bisected((FIXTURES / "attention_split.onnx").read_bytes())
    assert found.first is None and not found.masked and found.compared > 5
    assert found.sentences() == [f"all {found.compared} values that the module stores agree"]


def test_values_with_room_for_what_is_not_found_are_left_out() -> None:
    found = bisected(found_net("boxes of rows").SerializeToString())
    assert found.first is None and found.compared > 1


def test_an_operator_that_is_imported_wrongly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain that it is in differs, and so does TVM without kernels: at that operator."""
    importing(monkeypatch, "Relu", lambda v: relax.op.add(v, relax.const(0.1)))
    found = bisected(RELU)
    assert found.first is not None and found.without_kernels is not None
    assert (found.without_kernels.operator, found.without_kernels.node) == ("Relu", "Relu_2")
    assert found.without_kernels.computed_by == "TVM" and not found.without_kernels.inside
    assert found.first.operator == "Add" and "Relu 'Relu_2'" in found.first.inside
    chain = "of chain 1 'MatMul_0_MatMul_3' ("
    kernels = (f"the kernel {chain}", f"one of 2 kernels {chain}")  # as they were timed
    assert found.first.computed_by.startswith(kernels)
    assert found.first.error > found.first.tolerance == 1e-4
    assert "without kernels, the first result that differs is that of Relu" in str(
        found.sentences()[-1]
    )


def test_a_chain_that_is_lifted_wrongly_is_told_from_what_tvm_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lift, "ELEMENTWISE", {**lift.ELEMENTWISE, "relax.nn.relu": lambda x: x})
    found = bisected(RELU)
    assert found.first is not None and found.without_kernels is None
    assert "left to TVM the model agrees" in found.sentences()[-1]


def test_the_first_of_several_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sums are wrong, and all that is computed from them; no chain takes a cumulative sum."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        g (float[4, 8] x) => (float[4, 8] y)
        { axis = Constant <value = int64 {0}> () a = Abs (x) b = CumSum (a, axis)
          c = CumSum (b, axis) y = Neg (c) }""")
    for node in model.graph.node:
        node.name = f"the_{node.output[0]}"
    importing(monkeypatch, "CumSum", lambda v: relax.op.multiply(v, relax.const(1.01)))
    found = bisected(model.SerializeToString())
    assert found.first is not None and found.without_kernels is None
    assert (found.first.node, found.first.operator, found.first.value) == ("the_b", "CumSum", "b")
    assert found.first.error == pytest.approx(0.01, rel=1e-3)
    assert found.first.computed_by == "TVM"


def masked_attention() -> bytes:
    """y = softmax(x k x' + mask) x w + x, the mask an input."""
    weights = {n: np.random.default_rng(1).standard_normal((8, 8)).astype("f4") for n in "kw"}
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        g (float[2, 16, 8] x, float[2, 16, 16] mask) => (float[2, 16, 8] y)
        { q = MatMul (x, k) t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (q, t)
          m = Add (s, mask) p = Softmax <axis = -1> (m) u = MatMul (p, x) o = MatMul (u, w)
          y = Add (o, x) }""")
    model.graph.initializer.extend(numpy_helper.from_array(weights[n], n) for n in "kw")
    for node in model.graph.node:
        node.name = f"the_{node.output[0]}"
    return model.SerializeToString()


@pytest.mark.parametrize("stored", [False, True])
def test_rows_that_are_masked_throughout_are_said_and_not_blamed(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime has NaN there, and after the product with w in all that is computed from it. So
    it is where the attention's kernel has the softmax, and where its result is stored."""
    large = 1e-3 if stored else 1e-9
    monkeypatch.setattr(
        compiling, "expected", lambda c, *_, **__: large if len(c.operators) > 5 else 1e-6
    )
    monkeypatch.setattr(Partition, "close", ())
    mask = np.zeros((2, 16, 16), np.float32)
    mask[0, 3] = -np.inf
    made = compiled(masked_attention())
    softmax = [m.chain for m in made.decided.parted.matches if "exp(" in str(m.chain)]
    assert [len(c.operators) > 5 for c in softmax] == [not stored]
    fixed = bound(masked_attention(), {})
    feeds = inputs(fixed, np.random.default_rng(0)) | {"mask": mask}
    found = bisect(made.decided, fixed, feeds)
    assert found.first is None, str(found.first)
    (said,) = found.masked
    assert said.startswith("1 of 32 rows of Softmax 'the_p' are masked throughout")
    assert found.sentences()[0] == said


def test_softmaxes_with_zeros_for_masked_rows_are_those_of_onnxruntime_elsewhere() -> None:
    model = OnnxModel(onnx.load_from_string(masked_attention()))
    feeds = inputs(model, np.random.default_rng(0))
    feeds["mask"] = np.zeros((2, 16, 16), np.float32)
    feeds["mask"][1, 2] = -np.inf
    plain = computed_by_onnxruntime(model, feeds, ["p", "y", "q"])
    zeros = computed_by_onnxruntime(model, feeds, ["p", "y", "q"], {"p": np.dtype("f4")})
    assert np.isnan(plain["p"][1, 2]).all() and (zeros["p"][1, 2] == 0).all()
    assert (zeros["y"][1, 2] == feeds["x"][1, 2]).all()
    others = np.arange(16) != 2
    assert (plain["p"][1, others] == zeros["p"][1, others]).all() and (
        plain["q"] == zeros["q"]
    ).all()
    whole = onnxruntime.InferenceSession(masked_attention()).run(None, feeds)[0]
    assert np.allclose(whole[0], zeros["y"][0], atol=1e-5)


def test_marks_do_not_hide_what_differs() -> None:
    lowest = np.finfo(np.float32).min
    expected = np.array([1.0, 2.0, lowest, -np.inf], np.float32)
    assert value_difference(expected.copy(), expected) == 0
    found = np.array([1.0, 2.2, lowest, lowest], np.float32)
    assert value_difference(found, expected) == pytest.approx(0.2 / 5**0.5, rel=1e-5)
    found = np.array([1.0, 2.0, 0.0, -np.inf], np.float32)
    assert value_difference(found, expected) > 0.5


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_values_of_a_narrow_module_agree_within_its_tolerance(narrow: str) -> None:
    model = (FIXTURES / "escaping.onnx").read_bytes()
    made = compile_model(model, CPU, tuned(), TuneOptions(trials=1), {}, narrow=narrow)
    fixed = bound(model, {})
    found = bisect(made.decided, fixed, inputs(fixed, np.random.default_rng(0)))
    assert found.first is None and found.compared >= 2
    assert found.sentences() == [f"all {found.compared} values that the module stores agree"]


def test_values_that_vanish_in_float16_are_told_as_such(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[4,8] x) => (float[4,8] y)
    <float[8,8] w = {""" + ",".join(["1"] * 64) + """}> {
      k = Constant <value_float = 1e-9> ()
      h = Mul (x, k)
      y = MatMul (h, w)
    }"""  # fmt: skip
    model = onnx.parser.parse_model(text).SerializeToString()
    assert verified(model, tmp_path, narrow="bfloat16")["error"] < 1e-1
    tiny = r"more than 2e-02 \(a result has \de-09 at most, less than 6e-05, .*: bf16 has float32's"
    with pytest.raises(DisagreementError, match=tiny):
        verified(model, tmp_path, narrow="float16")


def test_values_beyond_float16_are_told_as_such(tmp_path: Path) -> None:
    """A sum of 1e3 * 1e3 fits bfloat16 alone; each output has its error."""
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[4,8] x) => (float[4,8] y, float[4,8] z)
    <float[8,8] w = {""" + ",".join(["1000"] * 64) + """}> {
      k = Constant <value_float = 1000.0> ()
      h = Mul (x, k)
      y = MatMul (h, w)
      z = MatMul (y, w)
    }"""  # fmt: skip
    model = onnx.parser.parse_model(text).SerializeToString()
    right = verified(model, tmp_path, narrow="bfloat16")
    assert list(right["outputs"]) == ["y", "z"] and right["tolerance"] == 1e-1
    assert max(right["outputs"].values()) == right["error"] < 1e-1
    beyond = r"differ by inf, more than 2e-02 \(a value may be beyond 65504, .*: bf16 has float32's"
    with pytest.raises(DisagreementError, match=beyond):
        verified(model, tmp_path, narrow="float16")


def verified(
    model: bytes, folder: Path, end: float | None = None, narrow: str | None = None
) -> dict[str, Any]:
    made = compile_model(model, CPU, tuned(), TuneOptions(trials=1), {}, narrow=narrow)
    (folder / "module.so").write_bytes(made.module)
    return verify(made, folder / "module.so", bound(model, {}), 0, end)


def test_a_module_that_disagrees_is_not_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verified(RELU, tmp_path)
    assert right["error"] <= right["tolerance"] == 1e-4
    importing(monkeypatch, "Relu", lambda v: relax.op.add(v, relax.const(0.1)))
    with pytest.raises(DisagreementError, match=r"differ by .* more than 1e-04; the first result"):
        verified(RELU, tmp_path)
    with pytest.raises(DisagreementError, match=r"more than 1e-04; mcfuser bisect names"):
        verified(RELU, tmp_path, time.monotonic() + 3600)


def test_an_output_without_a_number_is_told(tmp_path: Path) -> None:
    n = Net()
    x = n.input("x", 2, 3)
    below = n.op("Sub", n.op("Neg", n.op("Abs", x)), n.const(1.0))
    found = verified(n.model(n.op("Log", below), n.op("Exp", x)).SerializeToString(), tmp_path)
    assert found["error"] <= found["tolerance"]
    none, some = found["outputs"]
    assert found["numberless"] == [none] and some not in found["numberless"]


def test_the_module_is_loaded_while_onnxruntime_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its process is ended where onnxruntime has no answer."""
    begun: list[Supervised] = []

    def refused(model: OnnxModel, feeds: Feeds, in_place: Mapping[str, str]) -> NoReturn:
        assert len(begun) == 1 and begun[0].alive
        raise InputError("onnxruntime cannot run the model")

    def supervised(*given: Any, **more: Any) -> Supervised:
        begun.append(Supervised(*given, **more))
        return begun[0]

    monkeypatch.setattr("mcfuser.graph.running.Supervised", supervised)
    monkeypatch.setattr("mcfuser.bisect.answering", refused)
    assert verified(RELU, tmp_path) == {"skipped": "onnxruntime cannot run the model"}
    assert not begun[0].alive


def test_what_cannot_be_compared_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verified(RELU, tmp_path, time.monotonic()) == {"skipped": "no time was left"}
    made = compiled(RELU)
    elsewhere = replace(made, decided=replace(made.decided, missing="no GPU is at hand"))
    found = verify(elsewhere, tmp_path / "none.so", bound(RELU, {}), 0, None)
    assert found == {"skipped": "no GPU is at hand"}


def test_a_tenth_of_the_time_is_set_aside_and_no_more_than_a_check_takes() -> None:
    now = time.monotonic()
    assert built_by(None) is None
    assert built_by(now + 600) == now + 600 - CHECKING
    short = built_by(now + 10)
    assert short is not None and short - now == pytest.approx(9.0, abs=0.1)
    assert built_by(now - 1) == now - 1
