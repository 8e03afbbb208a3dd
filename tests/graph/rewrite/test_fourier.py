"""Fourier transforms are products and convolutions, and compute what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from tests.support.nets import Net
from tests.support.one_node import Arrays, agree, one_node, replaced

RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def number(value: int) -> np.ndarray:
    return np.asarray(value, np.int64)


def kinds(inputs: list[str], given: Arrays, constants: Arrays, opset: int, **more: int) -> set[str]:
    model = one_node("DFT", inputs, 1, given, constants, opset=opset, **more)
    return {n.op_type for n in agree(model, given, 1e-4).graph.node}


@pytest.mark.parametrize("attributes", [{}, {"onesided": 1}, {"inverse": 1}])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), [((2, 9), 1), ((2, 3, 16), 2), ((12, 5, 3), 0)])
def test_transforms_along_every_axis(
    shape: tuple[int, ...], axis: int, parts: int, attributes: dict[str, int]
) -> None:
    if parts == 2 and "onesided" in attributes:
        pytest.skip("of real numbers only")
    given = {"x": drawn(*shape, parts)}
    assert "MatMul" in kinds(["x"], given, {}, 17, axis=axis, **attributes)
    assert "DFT" not in kinds(["x", "", "axis"], given, {"axis": number(axis)}, 20, **attributes)


@pytest.mark.parametrize("length", [5, 9, 16])
def test_a_length_cuts_or_adds_zeros(length: int) -> None:
    given = {"x": drawn(2, 9, 1)}
    assert kinds(["x", "n"], given, {"n": number(length)}, 17, onesided=1)


@pytest.mark.parametrize("windowed", ["", "constant", "given"])
@pytest.mark.parametrize("rank", [2, 3])
def test_short_times_are_a_convolution(windowed: str, rank: int) -> None:
    given = {"x": drawn(2, 60)[:, :, None] if rank == 3 else drawn(2, 60)}
    constants = {"step": number(4), "length": number(16)}
    if windowed:
        (given if windowed == "given" else constants)["window"] = np.hanning(16).astype(np.float32)
    names = ["x", "step", "window" if windowed else "", "length"]
    model = one_node("STFT", names, 1, given, constants)
    made = agree(model, given, 1e-4)
    assert [n.op_type for n in made.graph.node].count("Conv") == 1
    load(model.SerializeToString(), {})


def test_both_halves_of_complex_numbers() -> None:
    given = {"x": drawn(1, 32, 2)}
    constants = {"step": number(8), "length": number(8)}
    model = one_node("STFT", ["x", "step", "", "length"], 1, given, constants, onesided=0)
    agree(model, given, 1e-4)


def test_what_cannot_be_known_is_refused() -> None:
    given = {"x": drawn(1, 32, 1), "step": number(8)}
    model = one_node("STFT", ["x", "step"], 1, given)
    with pytest.raises(ModelError, match=r"'STFT'.*known only when the model runs"):
        replaced(model)
    given = {"x": drawn(1, 32, 2)}
    model = one_node("DFT", ["x"], 1, given, onesided=1)
    with pytest.raises(ModelError, match=r"'DFT'.*onesided"):
        replaced(model)


def test_the_shape_of_a_spectrum_of_one_side_is_known_behind_it() -> None:
    """A model that counts its frames, and says nothing of sides: that is one side."""
    net = Net(opset=17)
    x = net.input("x", 2, 60)
    spectrum = net.op("STFT", x, net.ints(4), net.weight(16))
    power = net.op("ReduceSumSquare", spectrum, axes=[-1], keepdims=0)
    bands = net.op("Transpose", net.op("MatMul", power, net.weight(9, 5)), perm=[0, 2, 1])
    frames = net.op("Squeeze", net.op("Shape", bands, start=2, end=3))
    places = net.op("Range", net.const(0, np.int64), frames, net.const(1, np.int64))
    early = net.op("Less", places, net.const(7, np.int64))
    kept = net.op("Where", early, bands, net.const(0, np.float32))
    model = net.model(net.op("ReduceSumSquare", kept, axes=[-1], keepdims=0))
    load(model.SerializeToString(), {})
