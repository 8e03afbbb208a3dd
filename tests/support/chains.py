"""Chains that tests share, inputs for them, and their renaming."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json, parse_operator, under_names

LINES: Mapping[str, tuple[Mapping[str, Sequence[str | int]], Sequence[str]]] = {
    "gemm": (
        {"A": "bmk", "B": "bkn", "D": "bnh"},
        [
            "C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]",
            "E[b, m, h] = sum[n] C[b, m, n] * D[b, n, h]",
        ],
    ),
    "attention": (
        {"Q": "bmk", "K": "bnk", "V": "bnh", "M": "mn"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "X[b, m, n] = 5.0 * tanh(S[b, m, n] / 5.0) + M[m, n] - 0.1 * n",
            "R[b, m] = max[n] X[b, m, n] where n <= m",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n] where n <= m",
            "U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m",
            "O[b, m, h] = U[b, m, h] / Z[b, m]",
        ],
    ),
    "softmax_in_place": (
        {"Q": "mk", "K": "nk", "V": "nh"},
        [
            "S[m, n] = sum[k] Q[m, k] * K[n, k]",
            "R[m] = max[n] S[m, n]",
            "P[m, n] = exp(S[m, n] - R[m])",
            "Z[m] = sum[n] P[m, n]",
            "W[m, n] = P[m, n] / Z[m]",
            "O[m, h] = sum[n] W[m, n] * V[n, h]",
        ],
    ),
    "gated": (
        {"X": "mk", "W": "kn", "V": "kn", "D": "nh"},
        [
            "G[m, n] = sum[k] X[m, k] * W[k, n]",
            "U[m, n] = sum[k] X[m, k] * V[k, n]",
            "Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]",
            "E[m, h] = sum[n] Y[m, n] * D[n, h]",
        ],
    ),
    "mlp": (
        {"A": "mk", "B": "kn", "D": "nh", "e": "n", "f": "h", "G": "mh"},
        [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "T[m, n] = max(C[m, n] + e[n], 0.0)",
            "E[m, h] = sum[n] T[m, n] * D[n, h]",
            "Y[m, h] = E[m, h] + f[h] + G[m, h]",
        ],
    ),
    "layer_norm": (
        {"X": "mn", "g": "n", "c": "n"},
        [
            "A[m] = sum[n] X[m, n] / 16.0",
            "D[m, n] = X[m, n] - A[m]",
            "Q[m] = sum[n] D[m, n] * D[m, n] / 16.0",
            "Y[m, n] = D[m, n] / sqrt(Q[m] + 0.001) * g[n] + c[n]",
        ],
    ),
    "rms_norm_projection": (
        {"X": "mk", "B": "kn", "g": "k"},
        [
            "Q[m] = sum[k] X[m, k] * X[m, k]",
            "Y[m, k] = X[m, k] / sqrt(Q[m] + 0.5) * g[k]",
            "C[m, n] = sum[k] Y[m, k] * B[k, n]",
        ],
    ),
    "three_products": (
        {"A": "mk", "B": "kn", "D": "nh", "F": "hp"},
        [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "E[m, h] = sum[n] C[m, n] * D[n, h]",
            "G[m, p] = sum[h] E[m, h] * F[h, p]",
        ],
    ),
    "linear": (
        {"A": "mk", "B": "kn", "e": "n"},
        ["C[m, n] = sum[k] A[m, k] * B[k, n]", "Y[m, n] = max(C[m, n] + e[n], 0.0)"],
    ),
    "log_sum_exp": (
        {"X": "mn"},
        [
            "R[m] = max[n] X[m, n]",
            "Z[m] = sum[n] exp(X[m, n] - R[m])",
            "L[m] = R[m] + log(Z[m])",
        ],
    ),
    "convolution": (
        {"A": (400, "c"), "B": "kch"},
        ["Y[m, h] = sum[k, c] A[m + k, c] * B[k, c, h]"],
    ),
}


def chain(
    axes: Mapping[str, object],
    tensors: Mapping[str, Sequence[str | int]],
    operators: Sequence[str],
    outputs: Sequence[str] = (),
) -> Chain:
    """A float32 chain from shapes and lines; axes and tensors that no line names are left out."""
    used = {a for line in operators for a in parse_operator(line).related}
    shapes = {t: s for t, s in tensors.items() if any(re.search(rf"\b{t}\[", x) for x in operators)}
    return from_json(
        {
            "axes": {a: e for a, e in axes.items() if a in used},
            "tensors": {t: {"shape": list(shape)} for t, shape in shapes.items()},
            "operators": list(operators),
            "outputs": list(outputs),
        }
    )


def rms_norm_product() -> Chain:
    """Rows that are normed and multiplied: threads and a product read the same tile."""
    return from_json({
        "axes": {"m": 96, "n": 64, "k": 128},
        "tensors": {
            "X": {"shape": ["m", "k"], "dtype": "float16"},
            "W": {"shape": ["k", "n"], "dtype": "float16", "constant": True},
            "Y": {"shape": ["m", "n"], "dtype": "float16"},
        },
        "operators": [
            "Q[m] = sum[k] X[m, k] * X[m, k]",
            "P[m, k] = X[m, k] * (1.0 / sqrt(Q[m] / 128.0 + 1e-05))",
            "Y[m, n] = sum[k] float16(P[m, k]) * W[k, n]",
        ],
    })  # fmt: skip


def depthwise(width: int = 7, size: int = 20, stride: int = 1) -> Chain:
    """Windows of each channel times that channel's weights; the data lie row by row, and their
    windows overlap where the stride is smaller than they are."""
    rows = (size - 1) * stride + width
    return from_json({
        "axes": {"b": 3, "m": size, "i": size, "k": width, "s": width},
        "tensors": {
            "A": {"shape": list("bmkis"), "dtype": "float16",
                  "strides": [rows * rows, rows * stride, rows, stride, 1]},
            "W": {"shape": list("bks"), "dtype": "float16"},
        },
        "operators": ["C[b, m, i] = sum[k, s] A[b, m, k, i, s] * W[b, k, s]"],
    })  # fmt: skip


def named(name: str, extents: Mapping[str, object]) -> Chain:
    return chain(extents, *LINES[name])


def extents(high: int = 20) -> st.SearchStrategy[dict[str, int]]:
    """Extents for every axis letter of LINES; the batch is small."""
    return st.fixed_dictionaries({a: st.integers(1, high if a != "b" else 2) for a in "bmnkhpc"})


def inputs(c: Chain, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(c.shape(n)) for n in c.inputs}


def renamed(c: Chain, axes: Mapping[str, str], tensors: Mapping[str, str]) -> Chain:
    """The same chain under other names; those that are not given stay."""

    letters = [axes.get(a.name, a.name) for a in c.axes]
    return under_names(c, c.name, letters, [tensors.get(t.name, t.name) for t in c.tensors])


def other(chain: Chain) -> tuple[Chain, dict[str, str], dict[str, str]]:
    """The chain with other names, and both maps; one of its tensors is called like a workspace."""
    axes = {a.name: f"{a.name}1" for a in chain.axes}
    tensors = {t.name: f"{t.name}_{i}" for i, t in enumerate(chain.tensors)}
    tensors[chain.tensors[0].name] = "ended"
    return renamed(chain, axes, tensors), tensors, axes
