"""Programs: what is known of a chain before any expression; which reductions may share loops."""

from __future__ import annotations

import pytest

from mcfuser.chain import gemm
from mcfuser.space.program import Program, program
from tests.support.chains import chain, named

AXES = dict.fromkeys("bmnkhp", 8)
SHAPES = {"X": "mn", "V": "nh", "K": "nk", "Q": "mk"}


def of(*lines: str, **more: list[str]) -> Program:
    return program(chain(AXES, SHAPES, lines, more.get("outputs", ())))


SOFTMAX = ("R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m])")


def test_batch_axes_are_those_of_every_tensor_that_have_several_positions() -> None:
    assert program(gemm(2, 8, 8, 8, 8)).batch == ("b",)
    assert program(gemm(1, 8, 8, 8, 8)).batch == ()


def test_ancestors_are_what_an_operator_needs_directly_or_not() -> None:
    ready = of("S[m, n] = sum[k] Q[m, k] * K[n, k]", "P[m, n] = tanh(S[m, n])",
               "O[m, h] = sum[n] P[m, n] * V[n, h]", "B[m] = sum[n] X[m, n]",
               outputs=["O", "B"])  # fmt: skip
    assert ready.ancestors["S"] == frozenset()
    assert ready.ancestors["O"] == {"S", "P"}
    assert ready.ancestors["B"] == frozenset()


def test_a_repair_is_known_by_target_moving_reduction_and_axis() -> None:
    ready = of(*SOFTMAX)
    assert list(ready.repairs) == [("Z", "R", "n")]
    assert ready.rolled(ready.chain.operator("Z"), "n")


def test_what_needs_no_reduction_over_a_loop_may_run_in_it() -> None:
    ready = of(*SOFTMAX)
    assert ready.rolled(ready.chain.operator("R"), "n")
    assert ready.rolled(ready.chain.operator("Z"), "m")


def test_a_target_with_a_repair_and_a_refusal_does_not_share_the_loop() -> None:
    """The maximum could be repaired, the mean in the absolute value could not."""
    ready = of("R[m] = max[n] X[m, n]", "A[m] = sum[n] X[m, n]",
               "T[m] = sum[n] exp(X[m, n] - R[m]) * abs(X[m, n] - A[m])")  # fmt: skip
    assert ("T", "R", "n") in ready.repairs and ("T", "A", "n") not in ready.repairs
    assert not ready.rolled(ready.chain.operator("T"), "n")


def test_a_target_without_any_repair_does_not_share_the_loop() -> None:
    ready = of("A[m] = sum[n] X[m, n]", "T[m] = sum[n] abs(X[m, n] - A[m])")
    assert not ready.repairs
    assert not ready.rolled(ready.chain.operator("T"), "n")


def test_what_the_loop_does_not_reach_waits_for_its_end() -> None:
    ready = of(*SOFTMAX, "L[m] = R[m] + log(Z[m])")
    assert not ready.rolled(ready.chain.operator("L"), "n")


def test_a_map_may_move_where_all_that_read_it_may_and_it_is_not_given_away() -> None:
    """Its tile is computed anew each iteration, from a maximum that still moves."""
    lines = ["R[m] = max[n] X[m, n]", "P[m, n] = exp(X[m, n] - R[m])",
             "Z[m] = sum[n] P[m, n]"]  # fmt: skip
    inside = of(*lines)
    assert inside.rolled(inside.chain.operator("P"), "n")
    given = of(*lines, outputs=["P", "Z"])
    assert not given.rolled(given.chain.operator("P"), "n")
    refused = of(*lines[:2], "A[m] = sum[n] X[m, n]",
                 "T[m] = sum[n] P[m, n] * abs(X[m, n] - A[m])")  # fmt: skip
    assert not refused.rolled(refused.chain.operator("P"), "n")


@pytest.mark.parametrize("name", ["attention", "softmax_in_place", "layer_norm", "mlp"])
def test_a_program_keeps_the_outputs_of_its_chain(name: str) -> None:
    c = named(name, dict.fromkeys("bmnkhpc", 4))
    assert program(c).chain.outputs == c.outputs
