"""Schedules of small chains, and inputs for them."""

from __future__ import annotations

import numpy as np

from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import rolls
from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.space.expression import loop_axes
from mcfuser.space.place import place
from mcfuser.space.program import Program
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
