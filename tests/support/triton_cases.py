"""Chains and schedules on which the generation of GPU kernels is tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Literal

from mcfuser.chain import Bounds, Chain, attention, from_json, gemm
from mcfuser.space.expression import Expression, bind, loop_axes, parse, tilings
from mcfuser.space.place import place
from mcfuser.space.program import program
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal

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
    "local": (
        {"Q": "bmk", "K": "bnk", "V": "bnh"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "R[b, m] = max[n] S[b, m, n] where n <= m and m <= n + 20",
            "P[b, m, n] = exp(S[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n] where n <= m and m <= n + 20",
            "U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m and m <= n + 20",
            "O[b, m, h] = U[b, m, h] / (Z[b, m] + 0.001)",
        ],
    ),
    "joint": (
        {"Q": "bmk", "K": "bnk", "V": "bnh"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "R[b] = max[m, n] S[b, m, n]",
            "P[b, m, n] = exp(S[b, m, n] - R[b])",
            "Z[b] = sum[m, n] P[b, m, n]",
            "U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h]",
            "O[b, m, h] = U[b, m, h] / Z[b]",
        ],
    ),
    "diagonal": (
        {"Q": "bmk", "K": "bnk"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "X[b, m, n] = S[b, m, n] * 0.3 - 20.0",
            "R[b] = max[m, n] X[b, m, n] where n == m",
            "P[b, m, n] = exp(X[b, m, n] - R[b])",
            "Z[b] = sum[m, n] P[b, m, n] where n == m",
            "L[b] = Z[b] * 1.0",
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


def run_time(plain: Chain, axes: Iterable[str], low: int = 1) -> Chain:
    """The chain where these axes have an extent known at run time only, the one given at most."""
    extents = {a: Bounds(min(low, plain.size(a)), plain.size(a)) for a in axes}
    return replace(
        plain, axes=tuple(replace(a, extent=extents.get(a.name, a.extent)) for a in plain.axes)
    )


def scheduled(
    plain: Chain,
    expression: str | Expression,
    tiles: Mapping[str, int],
    split: str | None = None,
    parts: int = 1,
) -> Schedule:
    """The chain placed under an expression; loops of one trip are dead, as the space has them."""
    ready = program(plain)
    chain = ready.chain
    parsed = parse(expression) if isinstance(expression, str) else expression
    kept = {a: min(tiles[a], chain.size(a)) for a in loop_axes(chain)}
    dead = [a for a in kept if kept[a] == chain.size(a)]
    buffers, body = place(ready, parsed, dead, split=split)
    return Schedule(chain, parsed, tuple(kept.items()), buffers, body, parts)


def deep(chain: Chain, order: Iterable[str]) -> Expression:
    """The deep expression with the loops in that order, bound to the grid."""
    wanted = list(order)
    return bind(
        chain,
        next(
            e
            for e in tilings(chain)
            if e.deep and list(e.axes) == [a for a in wanted if a in e.axes]
        ),
    )


@dataclass(frozen=True)
class Drawn:
    """A random schedule, its chain as given, and values of its run-time extents."""

    plain: Chain
    schedule: Schedule
    combine: Literal["kernel", "last"]
    extents: Mapping[str, int]


def drawn(rng: Random, step: int = 1) -> Drawn | None:
    """A random chain under a random expression, a third of them split and a third with run-time
    extents; None where the split is not legal, or the iterations are more than a test has time for.

    Above 1, extents are multiples of `step`, none known at run time only, and tiles are powers of
    two.
    """
    name = rng.choice(["gemm", "attention", "causal", "local", *sorted(LINES)])
    small = {a: rng.randint(1, 3 if a in "bg" else 70 // step) for a in "bgmnkh"}
    small |= {a: step * small[a] for a in "mnkh"}
    plain = chain_named(name, small, rng.choice(["float32", "float32", "float16"]))
    axes = [a.name for a in plain.axes]
    if rng.random() < 0.35 and step == 1:
        plain = run_time(plain, rng.sample(axes, rng.randint(1, min(2, len(axes)))))
    low_high = {a.name: a.extent for a in plain.axes if isinstance(a.extent, Bounds)}
    extents = {
        a: rng.choice([bounds.low, bounds.high, rng.randint(bounds.low, bounds.high)])
        for a, bounds in low_high.items()
    }
    sizes = [1, 7, 16, 16, 24, 32, 48, 70] if step == 1 else [1, 16, 16, 32, 64]
    tiles = {a: rng.choice(sizes) for a in axes}
    expression = bind(plain, rng.choice(tilings(plain)))
    reduced = sorted({a for o in plain.operators for a in o.over})
    free = [a for a in reduced if a not in expression.grid and tiles[a] < plain.size(a)]
    split = rng.choice(free) if free and rng.random() < 0.6 else None
    try:
        schedule = scheduled(plain, expression, tiles, split, rng.randint(2, 5) if split else 1)
    except Illegal:
        return None
    if prod(schedule.trips(a) for a in axes) > 100:
        return None
    return Drawn(plain, schedule, rng.choice(["kernel", "last"]), extents)
