"""Chains for kernels of warp groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcfuser.chain import Chain, attention, from_json, gemm

HEADS = {"Q": "bmk", "K": "bnk", "V": "bnh"}


def softmax(score: str, domain: str = "", q: str = "b") -> list[str]:
    """The lines of attention, `q` the letters of a head of Q."""
    rows = ", ".join([*q, "m"])
    return [
        f"S[{rows}, n] = sum[k] Q[{rows}, k] * K[b, n, k]",
        f"X[{rows}, n] = {score}",
        f"R[{rows}] = max[n] X[{rows}, n]{domain}",
        f"P[{rows}, n] = exp(X[{rows}, n] - R[{rows}])",
        f"Z[{rows}] = sum[n] P[{rows}, n]{domain}",
        f"U[{rows}, h] = sum[n] half(P[{rows}, n]) * V[b, n, h]{domain}",
        f"O[{rows}, h] = U[{rows}, h] / Z[{rows}]",
    ]


GATE = [
    "G[m, n] = sum[k] X[m, k] * W[k, n]",
    "U[m, n] = sum[k] X[m, k] * V[k, n]",
    "Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]",
]

LINES: Mapping[str, tuple[dict[str, str], Sequence[str]]] = {
    "causal": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m")),
    "alibi": (
        HEADS | {"a": "b"},
        softmax("S[b, m, n] * 0.3 + a[b] * 0.1 * (n - m)", " where n <= m"),
    ),
    "window": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m and m <= n + 40")),
    "around": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m + 9 and m <= n + 40")),
    "cap": (HEADS, softmax("5.0 * tanh(S[b, m, n] / 5.0)")),
    "masked": (HEADS | {"M": "bn"}, softmax("S[b, m, n] * 0.3 + M[b, n]")),
    "grouped": (HEADS | {"Q": "bgmk"}, softmax("S[b, g, m, n] * 0.3", q="bg")),
    "grouped_causal": (
        HEADS | {"Q": "bgmk"},
        softmax("S[b, g, m, n] * 0.3", " where n <= m", q="bg"),
    ),
    "linear": (
        {"A": "mk", "B": "kn", "c": "n"},
        ["C[m, n] = sum[k] A[m, k] * B[k, n]", "Y[m, n] = max(C[m, n] + c[n], 0.0)"],
    ),
    "linear_flipped": ({"A": "mk", "B": "nk"}, ["C[m, n] = sum[k] A[m, k] * B[n, k]"]),
    "gated": ({"X": "mk", "W": "kn", "V": "kn"}, GATE),
    "mlp": (
        {"A": "mk", "B": "kn", "D": "nh", "e": "n", "f": "h", "G": "mh"},
        [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "T[m, n] = max(C[m, n] + e[n], 0.0)",
            "E[m, h] = sum[n] half(T[m, n]) * D[n, h]",
            "Y[m, h] = E[m, h] + f[h] + G[m, h]",
        ],
    ),
    "norm": (
        {"X": "mk", "B": "kn", "g": "k"},
        ["Y[m, k] = half(X[m, k] * g[k])", "C[m, n] = sum[k] Y[m, k] * B[k, n]"],
    ),
    "long_before": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m - 200")),
    "empty_rows": (
        HEADS | {"M": "bn"},
        [
            *softmax("S[b, m, n] * 0.3 + M[b, n]", " where n <= m and m <= n + 40"),
            "L[b, m] = Z[b, m] * 1.0",
        ],
    ),
    "scores": (
        {"Q": "imk", "K": "ink", "V": "inh"},
        [
            "X[i, m, n] = sum[k] Q[i, m, k] * K[i, n, k]",
            "O[i, m, h] = sum[n] half(X[i, m, n]) * V[i, n, h]",
        ],
    ),
    "lower": (
        {"A": "mk", "B": "kn", "D": "nh"},
        [
            "T[m, n] = sum[k] A[m, k] * B[k, n]",
            "E[m, h] = sum[n] half(T[m, n]) * D[n, h] where n <= m",
        ],
    ),
    "two": (
        {"A": "mk", "B": "kn", "D": "nh", "F": "nh"},
        [
            "T[m, n] = sum[k] A[m, k] * B[k, n]",
            "E[m, h] = sum[n] half(T[m, n]) * D[n, h] where n <= m",
            "n_end[m, h] = sum[n] half(T[m, n]) * F[n, h]",
            "Y[m, h] = E[m, h] + n_end[m, h]",
        ],
    ),
    "rows": (
        {"A": "bmk", "B": "bkn"},
        [
            "C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]",
            "r[b] = max[m, n] abs(C[b, m, n])",
            "Y[b, m, n] = C[b, m, n] / r[b]",
        ],
    ),
    "outer": (
        {"A": "mk", "B": "kn", "D": "nh", "a": "m", "c": "n"},
        [
            "T[m, n] = a[m] * c[n]",
            "U[m, h] = sum[n] half(T[m, n]) * D[n, h]",
            "S[m, n] = sum[k] A[m, k] * B[k, n]",
            "R[m] = max[n] S[m, n]",
            "Y[m, h] = U[m, h] * R[m]",
        ],
    ),
    "lengths": (
        {"A": "mk", "B": "kn"},
        [
            "q[m] = sum[k] A[m, k] * A[m, k]",
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "Y[m, n] = C[m, n] / (q[m] + 1.0)",
        ],
    ),
    "again": (
        HEADS | {"W": "bkh"},
        [
            *softmax("S[b, m, n] * 0.3"),
            "G[b, m, h] = sum[k] Q[b, m, k] * W[b, k, h]",
            "Y[b, m, h] = G[b, m, h] * 1.0",
        ],
    ),
    "weighted": (
        HEADS,
        [
            *softmax("S[b, m, n] * 0.3")[:3],
            "Z[b, m] = sum[n] exp(X[b, m, n] - R[b, m])",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m] - log(Z[b, m]))",
            "O[b, m, h] = sum[n] half(P[b, m, n]) * V[b, n, h]",
        ],
    ),
    "below": (
        HEADS,
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "T[b, m, n] = tanh(S[b, m, n])",
            "U[b, m, h] = sum[n] half(T[b, m, n]) * V[b, n, h]",
            "O[b, m, h] = max[n] S[b, m, n] * 0.1 - U[b, m, h]",
        ],
    ),
    "wide": (HEADS, [line.replace("half", "") for line in softmax("S[b, m, n] * 0.3")]),
}


def chain_of(name: str, extents: Mapping[str, int], dtype: str) -> Chain:
    """A chain of the list above, or a short form, whose inputs and output have a dtype."""
    if name in ("attention", "gemm"):
        form = attention if name == "attention" else gemm
        return form(*(extents[a] for a in "bmnkh"), dtype=dtype)
    tensors, lines = LINES[name]
    letters = {*"".join(tensors.values())}
    described = {t: {"shape": list(shape), "dtype": dtype} for t, shape in tensors.items()}
    found = from_json({
        "name": name,
        "axes": {a: n for a, n in extents.items() if a in letters},
        "tensors": described,
        "operators": [line.replace("half", dtype) for line in lines],
    })  # fmt: skip
    more = {"scores": ("X",), "empty_rows": ("O",), "again": ("O",)}.get(name, ())
    outputs = tuple(t.name for t in found.tensors if t.name in {*found.outputs, *more})
    half = {*outputs} - {"L"}
    kept = tuple(replace(t, dtype=dtype) if t.name in half else t for t in found.tensors)
    return replace(found, tensors=kept, outputs=outputs)
