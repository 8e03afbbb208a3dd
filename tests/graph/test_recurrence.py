"""LSTM, GRU and RNN are one call for their whole sequence where a device has a loop for it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mcfuser.chain.recurrence import (
    NO_RECURRENCES,
    Recurrence,
    RecurrenceLimits,
    is_recurrence,
    recurrence_of,
)
from mcfuser.errors import ModelError
from mcfuser.graph.load import Loaded, load
from mcfuser.graph.partition import partition
from mcfuser.graph.recurrence import activations
from tests.support.recurrences import called_by_name
from tests.support.recurrent_nodes import EVERY, GATES, arrays, recurrent_model

LOOPS = RecurrenceLimits(("float32",))


def loaded(model: onnx.ModelProto, recurrences: RecurrenceLimits = LOOPS) -> Loaded:
    return load(model.SerializeToString(), {}, recurrences=recurrences)


def calls(found: Loaded) -> list[Recurrence]:
    """The recurrences that a module calls."""
    names = called_by_name(found.module)
    assert all(map(is_recurrence, names))
    return [recurrence_of(name) for name in names]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    ("direction", "backward"),
    [("forward", (False,)), ("reverse", (True,)), ("bidirectional", (False, True))],
)
def test_a_node_is_one_product_and_one_call(
    kind: str, direction: str, backward: tuple[bool, ...]
) -> None:
    given, weights = arrays(kind, len(backward), steps=7)
    model, _ = recurrent_model(kind, EVERY[kind], given, weights, direction=direction)
    found = loaded(model)
    (call,) = calls(found)
    assert call.backward == backward and call.sums == GATES[kind]
    parted = partition(found.module, 1e12, 1e10)
    assert len(parted.products) == 1
    assert "it is a loop over a sequence, with code of its own" in parted.left.values()
    assert not calls(loaded(model, recurrences=NO_RECURRENCES))


def test_a_gru_that_resets_its_state_has_two_stages() -> None:
    given, weights = arrays("GRU")
    for before, stages in ((0, 2), (1, 1)):
        model, _ = recurrent_model("GRU", EVERY["GRU"], given, weights, linear_before_reset=before)
        (call,) = calls(loaded(model))
        assert len(call.stages) == stages
        assert call.constants == (("bias",) if before else ())


def test_a_long_sequence_needs_no_more_nodes() -> None:
    given, weights = arrays("LSTM", steps=100_000, batch=1)
    model, _ = recurrent_model("LSTM", "X W R B", given, weights)
    assert len(calls(loaded(model))) == 1


def unrolled(model: onnx.ModelProto) -> bool:
    return not calls(loaded(model))


def test_lengths_matter_unless_all_sequences_have_all_steps() -> None:
    given, weights = arrays("GRU", batch=3)
    slots = f"{EVERY['GRU']} lengths"
    for lengths, matter in (([2, 5, 1], True), ([5, 5, 5], False)):
        known = {"lengths": np.array(lengths, np.int32)}
        (call,) = calls(loaded(recurrent_model("GRU", slots, given, weights | known)[0]))
        assert call.lengths == matter
        (call,) = calls(loaded(recurrent_model("GRU", slots, given | known, weights)[0]))
        assert call.lengths


@pytest.mark.parametrize("name", ["W", "R", "B", "P"])
def test_weights_that_are_not_known_are_multiplied_step_by_step(name: str) -> None:
    given, weights = arrays("LSTM")
    moved = {name: weights.pop(name)}
    model, _ = recurrent_model("LSTM", EVERY["LSTM"], given | moved, weights)
    assert unrolled(model)


def test_narrow_types_and_directions_that_differ_are_unrolled() -> None:
    given, weights = arrays("RNN", 2)
    names = {"direction": "bidirectional", "activations": ["Tanh", "Relu"]}
    assert unrolled(recurrent_model("RNN", "X W R", given, weights, **names)[0])
    names["activations"] = ["Relu", "Relu"]
    assert not unrolled(recurrent_model("RNN", "X W R", given, weights, **names)[0])
    narrow = ({n: a.astype(np.float16) for n, a in part.items()} for part in (given, weights))
    model = recurrent_model("RNN", "X W R", *narrow, direction="bidirectional")[0]
    assert unrolled(model)
    assert calls(loaded(model, RecurrenceLimits(("float16",))))


@pytest.mark.parametrize(("kind", "stages"), [("LSTM", (4,)), ("GRU", (2, 1)), ("RNN", (1,))])
def test_a_node_beyond_the_limits_is_unrolled(kind: str, stages: tuple[int, ...]) -> None:
    given, weights = arrays(kind, hidden=6, batch=3)
    model, _ = recurrent_model(kind, "X W R", given, weights)
    for rows, most, whole in ((3, 6, True), (3, 5, False), (2, 6, False)):
        limits = RecurrenceLimits(("float32",), (("float32", stages, rows, most),))
        found = calls(loaded(model, limits))
        assert bool(found) == whole
        for cell in found:
            assert tuple(len(stage.sums) for stage in cell.stages) == stages


def test_a_node_whose_weights_have_other_directions_is_unrolled() -> None:
    for direction, directions in (("forward", 2), ("bidirectional", 1)):
        given, weights = arrays("GRU", directions)
        assert unrolled(recurrent_model("GRU", "X W R", given, weights, direction=direction)[0])


def test_a_node_with_the_batch_first_is_unrolled() -> None:
    given, weights = arrays("LSTM", layout=1)
    assert unrolled(recurrent_model("LSTM", EVERY["LSTM"], given, weights, layout=1)[0])


def test_activations_are_read_in_order_with_their_factors() -> None:
    found = activations("GRU", ["HardSigmoid", "LeakyRelu", "Sigmoid", "Elu"], [0.3, 0.1], [0.4], 2)
    assert [[(f.name, dict(f.factors)) for f in way] for way in found] == [
        [("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("LeakyRelu", {"alpha": 0.1})],
        [("Sigmoid", {}), ("Elu", {"alpha": 1.0})],
    ]
    with pytest.raises(ValueError, match=r"'Affine' is none of Sigmoid, Tanh"):
        activations("RNN", ["Affine"], [], [], 1)


def test_an_unknown_activation_is_refused() -> None:
    given, weights = arrays("RNN")
    model, _ = recurrent_model("RNN", "X W R", given, weights, activations=["Affine"])
    with pytest.raises(ModelError, match=r"'RNN'.*'the_node'.*'Affine'"):
        loaded(model)


def test_weights_may_be_put_together() -> None:
    """torch's exporters write gates in another order, and directions one by one."""
    given, weights = arrays("RNN")
    model, _ = recurrent_model("RNN", "X W R", given, weights)
    for name in "WR":
        (tensor,) = (t for t in model.graph.initializer if t.name == name)
        flat = numpy_helper.to_array(tensor)[0]
        tensor.CopyFrom(numpy_helper.from_array(flat[:2], f"{name}_begin"))
        model.graph.initializer.append(numpy_helper.from_array(flat[2:], f"{name}_end"))
        parts = [f"{name}_begin", f"{name}_end"]
        for node in (
            onnx.helper.make_node("Unsqueeze", [f"{name}_flat", "zero"], [name]),
            onnx.helper.make_node("Concat", parts, [f"{name}_flat"], axis=0),
        ):
            model.graph.node.insert(0, node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
    assert not unrolled(model)
