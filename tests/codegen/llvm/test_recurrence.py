"""Loops over sequences compute what onnxruntime computes, however they are divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from mcfuser.chain.recurrence import RecurrenceLimits
from mcfuser.codegen.llvm.module import cpu_target
from mcfuser.codegen.llvm.recurrence import source
from mcfuser.codegen.llvm.walk import Walk, packed
from mcfuser.codegen.script import prim_func
from mcfuser.graph.load import load
from tests.support.host import HOST
from tests.support.lifted import computed
from tests.support.one_node import expected
from tests.support.recurrences import CELLS, random_walk, walked_over
from tests.support.recurrent_nodes import EVERY, FUNCTIONS, GATES, arrays, recurrent_model

Arrays = Mapping[str, np.ndarray]
LOOPS = RecurrenceLimits(("float32",))


def agrees(
    kind: str, slots: str, given: Arrays, weights: Arrays, folder: Path, **attributes: object
) -> None:
    """Compares a node's loop with onnxruntime."""
    model, inputs = recurrent_model(kind, slots, given, weights, **attributes)
    found = load(model.SerializeToString(), {}, recurrences=LOOPS)
    results = computed(found.module, [*inputs.values()], folder)
    for a, b in zip(results, expected(model, inputs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_every_direction(kind: str, direction: str, tmp_path: Path) -> None:
    given, weights = arrays(kind, 1 + (direction == "bidirectional"), hidden=21)
    agrees(kind, EVERY[kind], given, weights, tmp_path, direction=direction)


@pytest.mark.parametrize("kind", GATES)
def test_inputs_may_be_left_out(kind: str, tmp_path: Path) -> None:
    given, weights = arrays(kind, batch=1, steps=1, hidden=1)
    agrees(kind, "X W R", given, weights, tmp_path)


@pytest.mark.parametrize("slots", ["X W R", "X W R B h"])
def test_a_gru_may_reset_its_product(slots: str, tmp_path: Path) -> None:
    given, weights = arrays("GRU", 2, hidden=9)
    way = {"direction": "bidirectional", "linear_before_reset": 1}
    agrees("GRU", slots, given, weights, tmp_path, **way)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("known", [False, True])
def test_sequences_may_be_shorter(kind: str, direction: str, known: bool, tmp_path: Path) -> None:
    given, weights = arrays(kind, 1 + (direction == "bidirectional"), batch=3, hidden=9)
    lengths = {"lengths": np.array([2, 5, 1], np.int32)}
    given, weights = (given, weights | lengths) if known else (given | lengths, weights)
    agrees(kind, f"{EVERY[kind]} lengths", given, weights, tmp_path, direction=direction)


@pytest.mark.parametrize(("kind", "names", "factors"), FUNCTIONS)
def test_activations_and_clipping(
    kind: str, names: list[str], factors: dict[str, object], tmp_path: Path
) -> None:
    given, weights = arrays(kind)
    slots = EVERY[kind].removesuffix(" P") if "input_forget" in factors else EVERY[kind]
    agrees(kind, slots, given, weights, tmp_path, activations=names, **factors)


# --- however a walk is divided

walks = st.builds(
    Walk,
    st.sampled_from(CELLS),
    steps=st.integers(1, 4),
    batch=st.integers(1, 5),
    hidden=st.sampled_from([1, 3, 8, 13, 16, 24, 31]),
    lanes=st.sampled_from([4, 8, 16]),
    rows=st.integers(1, 5),
    shares=st.booleans(),
).map(lambda w: replace(w, rows=min(w.rows, w.batch)))


@pytest.mark.thorough
@settings(max_examples=30)
@drawn(walks)
def test_panels_and_blocks_cover_every_unit_of_every_row(w: Walk) -> None:
    walked = random_walk(w.recurrence, w.steps, w.batch, w.hidden)
    form = w.recurrence.directions, w.batch, w.hidden
    arguments = [walked.given, packed(walked.square, w), *walked.arguments]
    results = [np.full((w.steps, *form), np.nan, np.float32)]
    results += [np.full(form, np.nan, np.float32) for _ in w.recurrence.states]
    tensors = [tvm.runtime.tensor(a) for a in (*arguments, *results)]
    function = prim_func(source(w)).with_attr("global_symbol", "main")
    tvm.compile(tvm.IRModule({"main": function}), target=cpu_target(HOST))["main"](*tensors)
    out, *last = (t.numpy() for t in tensors[len(arguments) :])
    wanted = walked_over(walked)
    np.testing.assert_allclose(out, wanted[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.stack(last), wanted[1], rtol=1e-4, atol=1e-4)
