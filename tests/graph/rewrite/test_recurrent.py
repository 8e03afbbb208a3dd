"""LSTM, GRU and RNN are unrolled, and compute what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node, run
from tests.support.recurrent_nodes import EVERY, FUNCTIONS, GATES, SLOTS, arrays, recurrent_model


def checked(
    kind: str, slots: str, given: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray],
    **attributes: object,
) -> list[str]:  # fmt: skip
    """Compares the node with those inputs that `slots` names; the rewritten model's operators."""
    model, given = recurrent_model(kind, slots, given, weights, **attributes)
    return [n.op_type for n in agree(model, given).graph.node]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_every_direction_is_unrolled_with_one_input_product(kind: str, direction: str) -> None:
    directions = 1 + (direction == "bidirectional")
    for slots in ("X W R", EVERY[kind]):
        given, weights = arrays(kind, directions)
        kinds = checked(kind, slots, given, weights, direction=direction)
        assert kinds.count("MatMul") == 1 + directions * 5 * (1 + (kind == "GRU"))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("extents", [(1, 1, 1), (3, 1, 7), (1, 6, 2)])
def test_every_shape(kind: str, extents: tuple[int, int, int]) -> None:
    batch, steps, hidden = extents
    given, weights = arrays(kind, 1, batch, steps, hidden=hidden)
    checked(kind, EVERY[kind], given, weights)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_the_batch_may_come_first(kind: str, directions: int) -> None:
    """onnxruntime has no such layout: it computes the node with the batch second."""
    given, weights = arrays(kind, directions, layout=1)
    kept = {n: a for n, a in given.items() if n in EVERY[kind].split()}
    held = {n: a for n, a in weights.items() if n in EVERY[kind].split()}
    names = [n if n in EVERY[kind].split() else "" for n in SLOTS][: 8 if kind == "LSTM" else 6]
    way = "bidirectional" if directions == 2 else "forward"

    def node(layout: int, inputs: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        outputs = 3 if kind == "LSTM" else 2
        return one_node(
            kind, names, outputs, inputs, held, hidden_size=4, layout=layout, direction=way
        )

    turned = {n: np.ascontiguousarray(a.swapaxes(0, 1)) for n, a in kept.items()}
    every, *last = run(node(0, turned), turned)
    expected = [every.transpose(2, 0, 1, 3), *(a.swapaxes(0, 1) for a in last)]
    agree(node(1, kept), kept, results=expected)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("slots", ["X W R", "X W R B h"])
def test_a_gru_may_reset_before_or_after_its_product(before: int, slots: str) -> None:
    given, weights = arrays("GRU", 2)
    kinds = checked(
        "GRU", slots, given, weights, direction="bidirectional", linear_before_reset=before
    )
    assert kinds.count("MatMul") == (11 if before else 21)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_sequences_may_be_shorter(kind: str, direction: str) -> None:
    given, weights = arrays(kind, 1 + (direction == "bidirectional"), batch=3)
    lengths = {"lengths": np.array([2, 5, 1], np.int32)}
    slots = f"{EVERY[kind]} lengths"
    checked(kind, slots, given, weights | lengths, direction=direction)
    assert "Where" in checked(kind, slots, given | lengths, weights, direction=direction)
    whole = {"lengths": np.array([5, 5, 5], np.int32)}
    assert "Where" not in checked(kind, slots, given, weights | whole, direction=direction)


@pytest.mark.parametrize(("kind", "names", "factors"), FUNCTIONS)
def test_activations_and_clipping(kind: str, names: list[str], factors: dict[str, object]) -> None:
    given, weights = arrays(kind)
    slots = EVERY[kind].removesuffix(" P") if "input_forget" in factors else EVERY[kind]
    checked(kind, slots, given, weights, activations=names, **factors)


@pytest.mark.parametrize("kind", GATES)
def test_all_steps_have_one_kernel(kind: str) -> None:
    """But for the input products, and those of the reset state in a GRU."""
    given, weights = arrays(kind)
    model = one_node(
        kind, ["X", "W", "R", "B"], 1, {"X": given["X"]}, {n: weights[n] for n in "WRB"},
        hidden_size=4,
    )  # fmt: skip
    found = partition(load(model.SerializeToString(), {}).module, 1e12, 1e10)
    assert len(found.products) == 1 + (9 if kind == "GRU" else 4)  # the first state is zero
    last = 6 if kind == "GRU" else 4
    assert len({m.chain.key for m in found.matches[-last:]}) == 1 + (kind == "GRU")


def test_other_activations_are_refused() -> None:
    given, weights = arrays("RNN")
    model = one_node(
        "RNN", ["X", "W", "R"], 2, {"X": given["X"]}, {n: weights[n] for n in "WR"},
        hidden_size=4, activations=["Affine"],
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"'RNN'.*'ai.onnx', opset 17.*'the_node'.*'Affine'"):
        rewrite(model)


def test_a_long_sequence_is_refused_before_it_is_written_out() -> None:
    x = np.broadcast_to(np.float32(0), (10**6, 1, 3))
    _, weights = arrays("LSTM")
    model = one_node(
        "LSTM", ["X", "W", "R"], 3, {"X": x}, {n: weights[n] for n in "WR"}, hidden_size=4
    )
    said = r"has 21\d{6} nodes .*'LSTM'.*'the_node'.*1000000 steps; the limit is 50000.*MAX_NODES"
    with pytest.raises(ModelError, match=said):
        rewrite(model, DEFAULTS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(("batch", "tolerance"), [(1, 1e-5), (2, 2e-2)])
def test_quantized_weights_and_operands_that_are_quantized_as_they_come(
    dtype: type, by_column: bool, batch: int, tolerance: float
) -> None:
    """onnxruntime quantizes each thread's part of a batch by itself."""
    given, plain = arrays("LSTM", 2, batch)
    random = np.random.default_rng(3)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    constants: dict[str, np.ndarray] = {"B": plain["B"], "P": plain["P"]}
    for name in "WR":
        directions, columns, depth = plain[name].shape
        form = (directions, columns) if by_column else (directions,)
        quantized = random.integers(low, high, (directions, depth, columns), dtype, True)
        constants |= {
            name: quantized,
            f"{name}_scale": random.uniform(0.005, 0.02, form).astype(np.float32),
            f"{name}_zero": random.integers(low // 4, high // 4, form, dtype, True),
        }
    if by_column:  # onnxruntime takes no zero points by column
        constants |= {f"{n}_zero": np.zeros_like(constants[f"{n}_zero"]) for n in "WR"}
    names = ["X", "W", "R", "B", "", "h", "c", "P", "W_scale", "W_zero", "R_scale", "R_zero"]
    model = one_node(
        "DynamicQuantizeLSTM", names, 3, given, constants, "com.microsoft",
        hidden_size=plain["R"].shape[2], direction="bidirectional",
    )  # fmt: skip
    kinds = [n.op_type for n in agree(model, given, tolerance).graph.node]
    assert kinds.count("DynamicQuantizeLinear") == 1 + 2 * 5
