"""Problems: inputs that are drawn in pieces, values as types store them, errors of outputs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from chains import chain

from mcfuser.chain import gemm
from mcfuser.space.reference import evaluate

pytest.importorskip("cuda.core")

from mcfuser import gpu as gpus
from mcfuser import problem as problems
from mcfuser.problem import Problem, decode, encode, finite

TWO = gemm(1, 64, 48, 32, 32, "float16")


def of(c, seed: int = 0, **offsets: float) -> Problem:
    return Problem(SimpleNamespace(), c, seed, True, offsets)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_inputs_are_normal_and_the_same_for_the_same_seed(dtype: str) -> None:
    c = gemm(1, 512, 48, 32, 512, dtype)
    first, again, other = of(c).data, of(c).data, of(c, 1).data
    for name in c.inputs:
        values = decode(first[name], dtype).astype(np.float64)
        assert len(values) == np.prod(c.shape(name))
        assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert len({a[:100].tobytes() for a in first.values()}) == len(first)


def test_pieces_of_an_input_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "PIECE", 100)
    found = of(TWO).data["A"]
    pieces = [found[i : i + 100] for i in range(0, len(found), 100)]
    assert len(pieces[-1]) == len(found) % 100 > 0
    assert len({p[:48].tobytes() for p in pieces}) == len(pieces)


def test_what_divides_is_away_from_zero_and_offsets_move() -> None:
    lines = ["Y[m] = sum[n] (A[m, n] / D[m, n])"]
    c = chain({"m": 64, "n": 64}, {"A": "mn", "D": "mn"}, lines)
    data = of(c, A=9.0).data
    assert data["D"].min() >= 1.0 and data["A"].min() < 8.0
    assert abs(data["A"].mean() - 9) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_values_survive_their_storage(dtype: str) -> None:

    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    once = decode(encode(values, dtype), dtype)
    assert np.array_equal(decode(encode(once, dtype), dtype), once)
    limit = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 0.0}[dtype]
    assert np.abs(once - values).max() <= limit * np.abs(values).max()


def test_poison_is_nan_in_bfloat16() -> None:

    assert np.isnan(decode(np.full(4, 0xFFFF, np.uint16), "bfloat16")).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_value_that_is_not_finite_is_found(dtype: str, bad: float) -> None:

    values = np.linspace(-3e4, 3e4, 24, dtype=np.float32).reshape(4, 6)
    assert finite(encode(values, dtype), dtype)
    assert finite(encode(values, dtype)[:, ::2], dtype)
    values[2, 4] = bad
    cut = (values.view(np.uint32) >> 16).astype(np.uint16)
    stored = cut if dtype == "bfloat16" else values.astype(dtype)
    assert not finite(stored, dtype)
    assert not finite(stored[:, ::2], dtype)


@pytest.mark.parametrize("at", [0, 7, 8, 99])
def test_no_part_is_passed_over(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(problems, "CACHED", 8)
    stored = np.ones((10, 10), np.float16)
    assert finite(stored, "float16")
    stored.reshape(-1)[at] = np.inf
    assert not finite(stored, "float16")


def test_a_program_is_wrong_where_an_output_was_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    problem = Problem(SimpleNamespace(), TWO, 0, True, {})
    right = evaluate(TWO, {n: a.reshape(TWO.shape(n)) for n, a in problem.data.items()})
    stored = right["E"].astype(np.float16).reshape(-1)
    monkeypatch.setattr(gpus, "download", lambda gpu, buffer, array: buffer)
    monkeypatch.setattr(gpus, "pinned", lambda like: like)
    assert problem.error({"E": stored}, 1e-2) < 1e-3
    holed = stored.copy()
    holed[7] = np.nan
    assert problem.error({"E": holed}, 1e-2) == "output 'E' is not finite"
    assert "more than 1e-02" in str(problem.error({"E": stored * np.float16(1.5)}, 1e-2))
