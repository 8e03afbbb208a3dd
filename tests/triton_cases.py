"""Chains and schedules on which the generation of GPU kernels is tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.roll import rolls
from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.space.expression import Expression, loop_axes, parse
from mcfuser.space.place import Program, place
from mcfuser.space.schedule import Schedule

LINES: Mapping[str, tuple[dict[str, str], list[str]]] = {
    "masked": (
        {"Q": "bmk", "K": "bnk", "V": "bnh", "M": "bn"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "X[b, m, n] = S[b, m, n] * 0.3 + M[b, n]",
            "R[b, m] = max[n] X[b, m, n]",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n]",
            "W[b, m, n] = P[b, m, n] / Z[b, m]",
            "O[b, m, h] = sum[n] W[b, m, n] * V[b, n, h]",
        ],
    ),
    "causal": (
        {"Q": "bmk", "K": "bnk", "V": "bnh"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "X[b, m, n] = 5.0 * tanh(S[b, m, n] / 5.0) - 0.1 * n",
            "R[b, m] = max[n] X[b, m, n] where n <= m",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n] where n <= m",
            "U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m",
            "O[b, m, h] = U[b, m, h] / Z[b, m]",
        ],
    ),
    "mlp": (
        {"A": "bmk", "B": "kn", "D": "nh", "e": "n", "f": "h", "G": "bmh"},
        [
            "C[b, m, n] = sum[k] A[b, m, k] * B[k, n]",
            "T[b, m, n] = (C[b, m, n] + e[n]) * 0.5 * (1.0 + erf((C[b, m, n] + e[n]) * 0.7))",
            "E[b, m, h] = sum[n] T[b, m, n] * D[n, h]",
            "Y[b, m, h] = E[b, m, h] + f[h] + G[b, m, h]",
        ],
    ),
    "linear": (
        {"A": "mk", "B": "kn", "bias": "n"},
        [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "Y[m, n] = max(C[m, n] + bias[n], 0.0)",
        ],
    ),
    "softmax": (
        {"X": "bmn"},
        [
            "R[b, m] = max[n] X[b, m, n]",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n]",
            "W[b, m, n] = P[b, m, n] / Z[b, m]",
        ],
    ),
    "layernorm": (
        {"X": "mn", "g": "n", "c": "n"},
        [
            "A[m] = sum[n] X[m, n] / 96.0",
            "D[m, n] = X[m, n] - A[m]",
            "Q[m] = sum[n] D[m, n] * D[m, n] / 96.0",
            "Y[m, n] = D[m, n] / sqrt(Q[m] + 0.001) * g[n] + c[n]",
        ],
    ),
    "norm_product": (
        {"X": "mk", "B": "kn", "g": "k"},
        [
            "Q[m] = sum[k] X[m, k] * X[m, k]",
            "Y[m, k] = X[m, k] / sqrt(Q[m] + 0.5) * g[k]",
            "C[m, n] = sum[k] Y[m, k] * B[k, n]",
        ],
    ),
    "window": (
        {"X": "mnk", "K": "nk"},
        ["Y[m, n] = sum[k] X[m, n, k] * K[n, k] where k <= n and n <= k + 5"],
    ),
    "grouped": (
        {"Q": "bgmk", "K": "bnk", "V": "bnh"},
        [
            "S[b, g, m, n] = sum[k] Q[b, g, m, k] * K[b, n, k]",
            "R[b, g, m] = max[n] S[b, g, m, n]",
            "P[b, g, m, n] = exp(S[b, g, m, n] - R[b, g, m])",
            "Z[b, g, m] = sum[n] P[b, g, m, n]",
            "U[b, g, m, h] = sum[n] P[b, g, m, n] * V[b, n, h]",
            "O[b, g, m, h] = U[b, g, m, h] / Z[b, g, m]",
        ],
    ),
    "vector": ({"a": "k", "B": "kn"}, ["C[n] = sum[k] a[k] * B[k, n]"]),
}


def chain_named(name: str, extents: Mapping[str, int], dtype: str = "float32") -> Chain:
    """A chain of the list above, or a short form, whose inputs and outputs have a dtype."""
    if name in ("gemm", "attention"):
        form = gemm if name == "gemm" else attention
        return form(*(extents[a] for a in "bmnkh"), dtype=dtype)
    tensors, lines = LINES[name]
    letters = "".join(tensors.values()) + "".join(lines)
    outs = [line.split("[")[0] for line in lines]
    described = {t: {"shape": list(shape), "dtype": dtype} for t, shape in tensors.items()}
    chain = from_json(
        {
            "name": name,
            "axes": {a: n for a, n in extents.items() if a in letters and _indexes(a, name)},
            "tensors": described,
            "operators": lines,
        }
    )
    kept = tuple(replace(t, dtype=dtype) if t.name == outs[-1] else t for t in chain.tensors)
    return replace(chain, tensors=kept)


def _indexes(a: str, name: str) -> bool:
    return any(a in shape for shape in LINES[name][0].values())


def scheduled(plain: Chain, expression: str | Expression, tiles: Mapping[str, int]) -> Schedule:
    """The chain placed under an expression; loops of one trip are dead, as the space has them."""
    chain = hoist(plain)
    parsed = parse(expression) if isinstance(expression, str) else expression
    kept = {a: min(tiles[a], chain.size(a)) for a in loop_axes(chain)}
    dead = [a for a in kept if kept[a] == chain.size(a)]
    buffers, body = place(Program(chain, rolls(chain)), parsed, dead)
    return Schedule(chain, parsed, tuple(kept.items()), buffers, body)
