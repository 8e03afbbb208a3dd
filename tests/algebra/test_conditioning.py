"""Hoisted shifts in float32: right to 1e-5 however far the data lie from zero."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mcfuser.algebra.dependence import dependences
from mcfuser.algebra.hoist import shifted
from mcfuser.chain import Chain
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.worker import offsets
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from mcfuser.tune.tuner import tune
from tests.support.chains import chain
from tests.support.tensorir_agree import WIDE, error, run

SHAPES = {"X": "mk", "R": "mk", "W": "kn", "g": "k", "c": "k"}


def layer_norm(depth: int, mean: str = "X[m, k] / {k}.0", residual: bool = False) -> Chain:
    x = "H" if residual else "X"
    return chain({"m": 24, "k": depth, "n": 32}, SHAPES, [
        *(["H[m, k] = X[m, k] + R[m, k]"] if residual else []),
        f"A[m] = sum[k] {mean.format(k=depth).replace('X', x)}",
        f"D[m, k] = {x}[m, k] - A[m]",
        f"Q[m] = sum[k] D[m, k] * D[m, k] / {depth}.0",
        "N[m, k] = D[m, k] / sqrt(Q[m] + 1e-05) * g[k] + c[k]",
        "Y[m, n] = sum[k] N[m, k] * W[k, n]",
    ])  # fmt: skip


def data(c: Chain, offset: float, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {n: rng.standard_normal(c.shape(n)).astype("float32") for n in c.inputs}
    found["X"] += np.float32(offset)
    return found


def result(c: Chain, inputs: Mapping[str, np.ndarray], shifts: bool, expression: str) -> float:
    """The norm-wise error of a schedule compiled for this CPU."""
    ready = program(c, shifts)
    tiles = {"m": 16, "n": 16, "k": 32}
    schedule = Plan(ready, parse(expression), frozenset()).schedule(tiles)
    return error(run(schedule, c, WIDE, dict(inputs)), evaluate(c, inputs))


@pytest.mark.parametrize("depth", [64, 768, 4096])
@pytest.mark.parametrize("offset", [0.0, 100.0, -1e4])
def test_a_layer_norm_before_a_product_needs_one_pass_and_is_right(
    depth: int, offset: float
) -> None:
    c = layer_norm(depth)
    ready = program(c).chain
    assert dependences(ready) == ()
    assert shifted(c) == ("X",)
    assert result(c, data(c, offset, depth), True, "mn.k") < 1e-5


@pytest.mark.parametrize(
    "mean", ["X[m, k] * {k}e-4 / {k}.0 * 1e4 / {k}.0", "float32(X[m, k]) / {k}.0"]
)
@pytest.mark.parametrize("residual", [False, True])
def test_so_it_is_however_the_mean_is_written(mean: str, residual: bool) -> None:
    c = layer_norm(256, mean, residual)
    assert dependences(program(c).chain) == ()
    assert result(c, data(c, 1e4, 1), True, "mn.k") < 1e-5


def test_so_it_is_with_a_reciprocal_that_was_rounded() -> None:
    """Exporters write a mean as a product with 1 / 300 in float32, which is not 1 / 300."""
    c = layer_norm(300, f"X[m, k] * {float(np.float32(1 / 300))!r}")
    assert dependences(program(c).chain) == ()
    assert result(c, data(c, 1e4, 2), True, "mn.k") < 1e-5


def test_without_shifts_the_axis_is_walked_again() -> None:
    c = layer_norm(64)
    assert dependences(program(c, shifts=False).chain) != ()
    assert result(c, data(c, 0.0, 0), False, "mn.k") < 1e-5


def test_without_a_pivot_the_same_data_would_be_lost() -> None:
    """The test can fail: the textbook form, E[x^2] - E[x]^2, is wrong at once."""
    c = chain({"m": 24, "k": 768}, SHAPES, [
        "A[m] = sum[k] X[m, k] / 768.0",
        "B[m] = sum[k] X[m, k] * X[m, k] / 768.0",
        "Q[m] = B[m] - A[m] * A[m]",
    ])  # fmt: skip
    ready = program(c)
    schedule = Plan(ready, parse("m.k"), frozenset()).schedule({"m": 16, "k": 32})
    x = data(c, 1e4, 0)
    assert error(run(schedule, c, WIDE, x), evaluate(c, x)) > 1e-1


def test_a_tuned_norm_was_checked_far_from_zero() -> None:
    c = layer_norm(128)
    assert offsets(c) == {"X": 1e4}
    found = tune(c, device_named("cpu"), MemoryCache(), TuneOptions(trials=4))
    assert found.shifts
    assert found.error is not None and found.error < 1e-5
    assert dependences(program(c, found.shifts).chain) == ()


def test_where_a_shift_loses_digits_the_axis_is_walked_twice() -> None:
    """A weighted mean has no pivot that it is a sum from: rounded, it is off by 1e-3 at 1e4."""
    lines = ["B[m] = sum[k] exp(g[k])", "C[m] = sum[k] exp(g[k]) * X[m, k]", "A[m] = C[m] / B[m]",
             "Y[m, n] = sum[k] (X[m, k] - A[m]) * W[k, n]"]  # fmt: skip
    c = chain({"m": 16, "k": 64, "n": 16}, SHAPES, lines)
    assert shifted(c) == ("X",)
    found = tune(c, device_named("cpu"), MemoryCache(), TuneOptions(trials=2))
    assert not found.shifts
    assert found.error is not None and found.error < 1e-5
    assert dependences(program(c, found.shifts).chain) != ()
