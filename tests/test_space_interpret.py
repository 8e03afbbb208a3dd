"""Any placed schedule computes what the chain means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import rolls
from mcfuser.chain import Chain, attention, from_json, gemm, to_json
from mcfuser.errors import ChainError
from mcfuser.space.count import count
from mcfuser.space.expression import bind, loop_axes, parse, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.place import place
from mcfuser.space.program import Program
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule

LINES = {
    "gemm": None,
    "attention": None,
    "softmax_in_place": {
        "tensors": {"Q": "bmk", "K": "bnk", "V": "bnh", "M": "mn"},
        "operators": [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "X[b, m, n] = S[b, m, n] * 0.3 + M[m, n]",
            "R[b, m] = max[n] X[b, m, n]",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n]",
            "W[b, m, n] = P[b, m, n] / Z[b, m]",
            "O[b, m, h] = sum[n] W[b, m, n] * V[b, n, h]",
        ],
    },
    "causal": {
        "tensors": {"Q": "bmk", "K": "bnk", "V": "bnh"},
        "operators": [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "X[b, m, n] = 5.0 * tanh(S[b, m, n] / 5.0) - 0.1 * n",
            "R[b, m] = max[n] X[b, m, n] where n <= m",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n] where n <= m",
            "U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m",
            "O[b, m, h] = U[b, m, h] / Z[b, m]",
        ],
    },
    "mlp": {
        "tensors": {"A": "bmk", "B": "bkn", "D": "bnh", "e": "n", "f": "h", "G": "bmh"},
        "operators": [
            "C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]",
            "T[b, m, n] = max(C[b, m, n] + e[n], 0.0)",
            "E[b, m, h] = sum[n] T[b, m, n] * D[b, n, h]",
            "Y[b, m, h] = E[b, m, h] + f[h] + G[b, m, h]",
        ],
    },
    "softmax_alone": {
        "tensors": {"X": "mn"},
        "operators": [
            "R[m] = max[n] X[m, n]",
            "P[m, n] = exp(X[m, n] - R[m])",
            "Z[m] = sum[n] P[m, n]",
            "W[m, n] = P[m, n] / Z[m]",
        ],
    },
    "three_products": {
        "tensors": {"A": "mk", "B": "kn", "D": "nh", "F": "hb"},
        "operators": [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "T[m, n] = tanh(C[m, n])",
            "E[m, h] = sum[n] T[m, n] * D[n, h]",
            "G[m, b] = sum[h] E[m, h] * F[h, b]",
        ],
    },
    "norm_then_product": {
        "tensors": {"X": "mk", "B": "kn", "g": "k"},
        "operators": [
            "Q[m] = sum[k] X[m, k] * X[m, k]",
            "Y[m, k] = X[m, k] / sqrt(Q[m] + 0.5) * g[k]",
            "C[m, n] = sum[k] Y[m, k] * B[k, n]",
        ],
    },
}


def build(name: str, extents: dict[str, int]) -> Chain:
    b, m, n, k, h = (extents[a] for a in "bmnkh")
    if name == "gemm":
        return gemm(b, m, n, k, h)
    if name == "attention":
        return attention(b, m, n, k, h)
    given_ = LINES[name]
    assert given_ is not None
    used = {a for axes in given_["tensors"].values() for a in axes}  # type: ignore[attr-defined]
    return from_json(
        {
            "axes": {a: e for a, e in extents.items() if a in used},
            "tensors": {t: {"shape": list(s)} for t, s in given_["tensors"].items()},  # type: ignore[attr-defined]
            "operators": given_["operators"],
        }
    )


def schedules(chain: Chain, expression, tiles: dict[str, int]) -> Schedule:
    chain = hoist(chain)
    program = Program(chain, rolls(chain))
    dead = {a for a in loop_axes(chain) if tiles[a] >= chain.size(a)}
    kept = tuple((a, min(tiles[a], chain.size(a))) for a in loop_axes(chain))
    buffers, body = place(program, expression, dead)
    return Schedule(chain, expression, kept, buffers, body)


def random_inputs(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(chain.shape(n)) for n in chain.inputs}


def agree(schedule: Schedule, plain: Chain, seed: int) -> None:
    inputs = random_inputs(plain, seed)
    expected = evaluate(plain, inputs)
    found, counted = interpret(schedule, inputs)
    predicted = count(schedule)
    assert counted.loaded == predicted.loaded
    assert counted.stored == predicted.stored
    assert counted.padded == predicted.padded
    assert counted.flops == predicted.flops
    for name in plain.outputs:
        scale = np.abs(expected[name]).max() + 1e-30
        np.testing.assert_allclose(found[name] / scale, expected[name] / scale, rtol=0, atol=1e-9)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(LINES)),
    st.fixed_dictionaries({a: st.integers(1, 20 if a != "b" else 2) for a in "bmnkh"}),
    st.fixed_dictionaries({a: st.integers(1, 12) for a in "bmnkh"}),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_every_schedule_computes_the_chain(name, extents, tiles, bound, pick) -> None:
    chain = build(name, extents)
    every = tilings(chain)
    expression = every[pick % len(every)]
    if bound:
        expression = bind(chain, expression)
    agree(schedules(chain, expression, tiles), chain, pick)


@pytest.mark.parametrize("text", ["mh.nk", "m.n(k,h)", "mh.kn"])
def test_a_fully_masked_tile_adds_nothing(text: str) -> None:
    chain = build("causal", {"b": 1, "m": 8, "n": 32, "k": 4, "h": 4})
    agree(schedules(chain, parse(text), {"m": 4, "n": 4, "k": 2, "h": 2}), chain, 1)


@pytest.mark.parametrize("n", [1, 7, 16, 33])
@pytest.mark.parametrize("text", ["mh.nk", "m.n(k,h)", "mh.kn", "nmhk"])
def test_one_schedule_serves_every_run_time_extent(n: int, text: str) -> None:
    fixed_chain = build("causal", {"b": 2, "m": 9, "n": n, "k": 5, "h": 6})
    document = to_json(fixed_chain)
    document["axes"]["n"] = [1, 33]  # type: ignore[index]
    chain = from_json(document)
    schedule = schedules(chain, parse(text), {"m": 4, "n": 8, "k": 5, "h": 4})
    agree(schedule.at({"n": n}), fixed_chain, n)
    with pytest.raises(ChainError, match="axis 'n' needs an extent from 1 to 33, not 34"):
        schedule.at({"n": 34})
