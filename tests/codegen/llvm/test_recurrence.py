"""Loops over sequences compute what onnxruntime computes, however they are divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from mcfuser.chain.recurrence import Recurrence, RecurrentStage
from mcfuser.codegen.llvm.module import cpu_target
from mcfuser.codegen.llvm.recurrence import source
from mcfuser.codegen.llvm.walk import Walk, packed
from mcfuser.codegen.script import prim_func
from mcfuser.expr import Read, parse
from mcfuser.graph.load import load
from mcfuser.space.reference import value
from tests.support.host import HOST
from tests.support.lifted import computed
from tests.support.one_node import expected
from tests.support.recurrent_nodes import EVERY, FUNCTIONS, GATES, arrays, recurrent_model

Arrays = Mapping[str, np.ndarray]


def agrees(
    kind: str, slots: str, given: Arrays, weights: Arrays, folder: Path, **attributes: object
) -> None:
    """Compares a node's loop with onnxruntime."""
    model, inputs = recurrent_model(kind, slots, given, weights, **attributes)
    found = load(model.SerializeToString(), {}, recurrences=True)
    results = computed(found.module, [*inputs.values()], folder)
    for a, b in zip(results, expected(model, inputs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


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

PLAIN = RecurrentStage("h", ("sum",), (("next", parse("tanh(x[j] + sum[j] * scale[j])")),))
FIRST = RecurrentStage(
    "h", ("sum_u", "sum_v"),
    (("u", parse("x[j] + sum_u[j] * 0.5")), ("v", parse("max(sum_v[j] * c[j], y[j])"))),
)  # fmt: skip
SECOND = RecurrentStage(
    "v", ("sum_w",),
    (("next_c", parse("u[j] - 0.25 * sum_w[j]")), ("next", parse("tanh(next_c[j]) + h[j] / 4.0"))),
)  # fmt: skip


def cells(backward: tuple[bool, ...], lengths: bool) -> list[Recurrence]:
    plain = Recurrence(("x",), ("scale",), (("h", "next"),), (PLAIN,), backward, lengths)
    states = (("h", "next"), ("c", "next_c"))
    return [plain, Recurrence(("x", "y"), (), states, (FIRST, SECOND), backward, lengths)]


walks = st.builds(
    Walk,
    st.sampled_from(
        [
            cell
            for backward in ((False,), (True,), (False, True))
            for lengths in (False, True)
            for cell in cells(backward, lengths)
        ]
    ),
    steps=st.integers(1, 4),
    batch=st.integers(1, 5),
    hidden=st.sampled_from([1, 3, 8, 13, 16, 24, 31]),
    lanes=st.sampled_from([4, 8, 16]),
    rows=st.integers(1, 5),
    shares=st.booleans(),
).map(lambda w: replace(w, rows=min(w.rows, w.batch)))


def named(known: Arrays, r: Read) -> np.ndarray:
    return known[r.tensor]


def walked_over(
    w: Walk,
    given: np.ndarray,
    square: np.ndarray,
    fixed: np.ndarray,
    lengths: np.ndarray,
    first: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """What the steps show and the last states [states, directions, ..], by the definition."""
    cell, out = w.recurrence, np.zeros((w.steps, w.recurrence.directions, w.batch, w.hidden))
    last = first.astype(np.float64)
    by_sum = square.reshape(cell.directions, w.hidden, cell.sums, w.hidden)
    by_given = given.reshape(w.steps, w.batch, cell.directions, len(cell.given), w.hidden)
    for d, backward in enumerate(cell.backward):
        for t in range(w.steps)[:: -1 if backward else 1]:
            known = {n: by_given[t, :, d, i] for i, n in enumerate(cell.given)}
            known |= {n: fixed[d, i] for i, n in enumerate(cell.constants)}
            known |= {state: last[i, d] for i, (state, _) in enumerate(cell.states)}
            begun = 0
            for stage in cell.stages:
                for name in stage.sums:
                    known[name] = known[stage.operand] @ by_sum[d, :, begun]
                    begun += 1
                for name, e in stage.values:
                    known[name] = value(e, partial(named, known), str)
            there = (t < lengths)[:, None]
            for i, (_, after) in enumerate(cell.states):
                last[i, d] = np.where(there, known[after], last[i, d])
            out[t, d] = np.where(there, last[0, d], 0)
    return out, last


@settings(max_examples=30)
@drawn(walks)
def test_panels_and_blocks_cover_every_unit_of_every_row(w: Walk) -> None:
    cell, random = w.recurrence, np.random.default_rng(w.hidden)
    form = cell.directions, w.batch, w.hidden

    def numbers(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32)

    given = numbers(w.steps * w.batch, cell.directions * len(cell.given) * w.hidden)
    square = numbers(cell.directions, w.hidden, cell.sums * w.hidden)
    fixed = numbers(cell.directions, len(cell.constants), w.hidden)
    first = numbers(len(cell.states), *form)
    lengths = random.integers(0, w.steps + 2, w.batch).astype(np.int32)
    arguments = [given, packed(square, w), *([fixed] if cell.constants else [])]
    arguments += [*([lengths] if cell.lengths else []), *first]
    results = [np.full((w.steps, *form), np.nan, np.float32)]
    results += [np.full(form, np.nan, np.float32) for _ in cell.states]
    tensors = [tvm.runtime.tensor(a) for a in (*arguments, *results)]
    function = prim_func(source(w)).with_attr("global_symbol", "main")
    tvm.compile(tvm.IRModule({"main": function}), target=cpu_target(HOST))["main"](*tensors)
    out, *last = (t.numpy() for t in tensors[len(arguments) :])
    ends = lengths if cell.lengths else np.full(w.batch, w.steps)
    wanted = walked_over(w, given, square, fixed, ends, first)
    np.testing.assert_allclose(out, wanted[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.stack(last), wanted[1], rtol=1e-4, atol=1e-4)
