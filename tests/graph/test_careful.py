"""What onnxruntime computes with few right digits: sigmoids of numbers far below zero, and Fourier
transforms of most lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mcfuser.graph.careful import careful
from mcfuser.graph.check import answer, output_errors, reference_session, settled_errors
from mcfuser.graph.weights import OnnxModel
from tests.support.nets import Net

FAR = -np.linspace(5.0, 40.0, 64, dtype=np.float32)
EXACT = (1 / (1 + np.exp(-FAR.astype(np.float64)))).astype(np.float32)


def scores() -> OnnxModel:
    net = Net()
    return OnnxModel(net.model(net.op("Sigmoid", net.input("x", 64))))


def test_a_written_sigmoid_has_the_type_s_precision() -> None:
    model = scores()
    (plain,) = answer(reference_session(model), {"x": FAR})
    (precise,) = answer(reference_session(careful(model)), {"x": FAR})
    assert np.abs(plain / EXACT - 1).max() > 0.1, "onnxruntime's own is precise by now"
    assert np.abs(precise / EXACT - 1).max() < 1e-5


def test_a_model_without_a_sigmoid_is_itself() -> None:
    net = Net()
    model = OnnxModel(net.model(net.op("Tanh", net.input("x", 64))))
    assert careful(model) is model


@pytest.mark.parametrize(("factor", "settled"), [(1.0, True), (1.001, False)])
def test_what_agrees_with_precise_sigmoids_agrees_and_nothing_else(
    factor: float, settled: bool
) -> None:
    model, low = scores(), {"x": np.full(64, -15.5, np.float32)}
    found = [(factor / (1 + np.exp(-low["x"].astype(np.float64)))).astype(np.float32)]
    names = [o.name for o in model.proto.graph.output]
    errors = output_errors(names, found, answer(reference_session(model), low))
    assert min(errors.values()) > 1e-2
    after = settled_errors(errors, 1e-4, model, low, found)
    assert (max(after.values()) <= 1e-4) == settled and max(after.values()) < 2e-3
    assert settled_errors(errors, 1.0, model, low, found) == errors, "these passed"


@pytest.mark.parametrize(("factor", "settled"), [(1.0, True), (1.001, False)])
def test_what_agrees_with_the_model_as_it_is_written_agrees_and_nothing_else(
    factor: float, settled: bool
) -> None:
    """onnxruntime may compute a product with a quantized weight as one of bytes."""
    net = Net()
    weight = np.random.default_rng(0).integers(-128, 128, (1024, 64)).astype(np.int8)
    read = net.op("DequantizeLinear", net.const(weight, np.int8), net.const(0.02))
    model = OnnxModel(net.model(net.op("MatMul", net.input("x", 16, 1024), read)))
    x = np.random.default_rng(1).standard_normal((16, 1024)).astype(np.float32)
    found = [(factor * (x.astype(np.float64) @ (weight * 0.02))).astype(np.float32)]
    (name,) = (o.name for o in model.proto.graph.output)
    after = settled_errors({name: 5e-3}, 1e-4, model, {"x": x}, found)
    assert (after[name] <= 1e-4) == settled and after[name] < 2e-3


def few_bits(**attributes: int) -> OnnxModel:
    net = Net()
    x = net.input("x", 2, 64)
    octets = net.const(net.random.integers(0, 256, (8, 2, 16)), np.uint8)
    scales = net.const(net.random.random((8, 2)))
    return OnnxModel(net.model(net.op(
        "MatMulNBits", x, octets, scales, domain="com.microsoft", K=64, N=8, bits=4, block_size=32,
        **attributes,
    )))  # fmt: skip


def test_products_of_few_bits_may_be_asked_not_to_round() -> None:
    rounded = few_bits(accuracy_level=4)
    exact = careful(rounded)
    assert [a.name for a in exact.proto.graph.node[0].attribute] == ["K", "N", "bits", "block_size"]
    assert len(rounded.proto.graph.node[0].attribute) == 5
    plain = few_bits()
    assert careful(plain) is plain
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)}
    (wanted,), (found,) = (answer(reference_session(m), feeds) for m in (plain, exact))
    np.testing.assert_array_equal(found, wanted)


def spectrum(operator: str, dtype: Any) -> OnnxModel:
    """The power spectrum of 400 samples."""
    net = Net(dtype, opset=20)
    x = net.input("x", 1, 400, *((1,) if operator == "DFT" else ()), dtype=dtype)
    window = net.const(np.hanning(400), dtype)
    if operator == "STFT":
        y = net.op("STFT", x, net.const(400, np.int64), window)
    else:
        windowed = net.op("Mul", x, net.op("Reshape", window, net.ints(1, 400, 1)))
        y = net.op("DFT", windowed, "", net.const(1, np.int64), onesided=1)
    return OnnxModel(net.model(net.op("ReduceSum", net.op("Mul", y, y), net.ints(-1), keepdims=0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operator", ["STFT", "DFT"])
def test_a_careful_transform_has_the_type_s_precision(operator: str, dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((1, 400)).astype(dtype)
    exact = np.abs(np.fft.rfft(x.astype(np.float64) * np.hanning(400))) ** 2
    feeds = {"x": x if operator == "STFT" else x[..., None]}
    model = spectrum(operator, dtype)
    (plain,) = answer(reference_session(model), feeds)
    (precise,) = answer(reference_session(careful(model)), feeds)
    assert precise.dtype == dtype
    off = np.linalg.norm(precise.reshape(exact.shape) - exact) / np.linalg.norm(exact)
    if dtype == np.float32:
        usual = np.linalg.norm(plain.reshape(exact.shape) - exact) / np.linalg.norm(exact)
        assert usual > 1e-5, "onnxruntime's own is precise by now"
    assert off < 1e-6


@pytest.mark.parametrize(("factor", "settled"), [(1.0, True), (1.001, False)])
def test_what_agrees_with_precise_transforms_agrees_and_nothing_else(
    factor: float, settled: bool
) -> None:
    """A tone, and what is left of it far from its frequency."""
    model = spectrum("STFT", np.float32)
    x = np.sin(np.arange(400) * 0.3).astype(np.float32)[None]
    (loud,) = answer(reference_session(careful(model)), {"x": x})
    errors = {model.proto.graph.output[0].name: 1e-3}
    after = settled_errors(errors, 1e-4, model, {"x": x}, [np.float32(factor) * loud])
    assert (max(after.values()) <= 1e-4) == settled and max(after.values()) < 2e-3
