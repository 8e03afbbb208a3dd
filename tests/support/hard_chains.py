"""Chains that kernels once got wrong, or had no words for; the first letter of an input says what
it may hold (wide_chains)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from mcfuser.chain import Chain, from_json
from mcfuser.space.plan import Plan
from mcfuser.space.schedule import Schedule
from tests.support.every_schedule import plans
from tests.support.plain import plain
from tests.support.wide_chains import memory, seen

AXES = {"m": 5, "n": 9, "k": 6}


def chain(tensors: Mapping[str, Any], lines: Sequence[str], outputs: Sequence[str] = ()) -> Chain:
    """A tensor is its dimensions, with its dtype after a colon where that is not float32."""
    described = {}
    for name, words in tensors.items():
        dims, _, dtype = words.partition(":")
        described[name] = {"shape": list(dims), "dtype": dtype or "float32"}
    used = {a: e for a, e in AXES.items() if any(a in line for line in lines)}
    return from_json(
        {"axes": used, "tensors": described, "operators": lines, "outputs": [*outputs]}
    )


HARD: dict[str, Chain] = {
    "labels": chain(
        {"X0": "mn", "L0": "m:int32"},
        ["Y[m] = sum[n] select(n == L0[m], X0[m, n], 0.0)",
         "Z[m] = sum[n] X0[m, n] * (n != L0[m])"],
        ("Y", "Z"),
    ),
    "whole results": chain(
        {"L0": "m:int32", "B0": "mn:bool", "S": "m:int64", "T": "m:int32", "U": "mn:int32"},
        ["S[m] = sum[n] L0[m] * 100000 + n where B0[m, n]", "T[m] = max[n] L0[m] - n",
         "U[m, n] = n * 3 - L0[m]"],
        ("S", "T", "U"),
    ),
    "casts": chain(
        {"X0": "mn", "Y": "mn:int32", "W": "mn:bool"},
        ["Y[m, n] = X0[m, n] * 4.0", "Z[m] = sum[n] int32(X0[m, n] * 3.0) + bool(X0[m, n])",
         "W[m, n] = not (X0[m, n] < 0.5 or n < 3)"],
        ("Y", "Z", "W"),
    ),
    "powers": chain(
        {"X0": "mn", "G0": "mn", "L0": "n:int32"},
        ["Y[m] = sum[n] X0[m, n] * pow(0.9, m - n) where n <= m",
         "Z[m, n] = pow(G0[m, n], X0[m, n]) + pow(X0[m, n], 4.0) + pow(G0[m, n], 1.7)",
         "W[m, n] = pow(X0[m, n], L0[n] - 4) + pow(X0[m, n], 0.0) + pow(X0[m, n], -3.0)"],
        ("Y", "Z", "W"),
    ),
    "rows of minus infinity": chain(
        {"M0": "mn", "X0": "nk"},
        ["R[m] = max[n] M0[m, n]", "P[m, n] = exp(M0[m, n] - R[m])", "Z[m] = sum[n] P[m, n]",
         "U[m, k] = sum[n] P[m, n] * X0[n, k]", "O[m, k] = U[m, k] / Z[m]"],
    ),
    "a product within rows and columns": chain(
        {"X0": "mk", "X1": "kn"}, ["C[m, n] = sum[k] X0[m, k] * X1[k, n] where n <= m"]
    ),
    "a product within a mask of all its axes": chain(
        {"X0": "mk", "X1": "kn", "B0": "mnk:bool"},
        ["C[m, n] = sum[k] X0[m, k] * X1[k, n] where B0[m, n, k]"],
    ),
    "a maximum of a multiple of a difference": chain(
        {"X0": "mn", "X1": "n"}, ["Y[n] = max[m] (X0[m, n] - X1[n]) * 1.25"]
    ),
    "a maximum of negative products": chain(
        {"X0": "mn", "X1": "mn"},
        ["R[m] = max[n] X0[m, n]", "Y[m] = max[n] exp(X0[m, n] - R[m]) * -abs(X1[m, n])"],
    ),
    "a condition that is reduced": chain(
        {"X0": "mn", "K": "mn:bool"},
        ["K[m, n] = X0[m, n] > 0.5", "Y[m] = max[n] K[m, n]", "Z[m] = sum[n] K[m, n]"],
        ("Y", "Z"),
    ),
    "functions of bfloat16": chain(
        {"X0": "mn:bfloat16"}, ["Y[m, n] = exp(X0[m, n]) + tanh(X0[m, n]) * erf(X0[m, n])"]
    ),
    "a factor that may be infinite": chain(
        {"X0": "mn", "L0": "m:int32"},
        ["Z[m] = sum[n] X0[m, n] where n < L0[m]",
         "O[m] = sum[n] X0[m, n] * (1.0 / Z[m]) where n < L0[m]"],
    ),
    "a branch that is not taken": chain(
        {"X0": "mn", "B0": "mn:bool"},
        ["S[m] = sum[n] X0[m, n] * 0.0", "T[m] = 1.0 / abs(S[m])",
         "Y[m] = sum[n] select(B0[m, n], T[m], X0[m, n]) where n < 0 or not B0[m, n]"],
    ),
    "an argument of the maximum": chain(
        {"X0": "mn", "A": "m:int32"},
        ["R[m] = max[n] X0[m, n]", "Z[m] = sum[n] exp(X0[m, n] - R[m])",
         "A[m] = max[n] select(X0[m, n] == R[m], n, -1)"],
        ("Z", "A"),
    ),
    "a vector within a mask": chain(
        {"X0": "mn", "M0": "n", "X2": "n", "B0": "n:bool"},
        ["R[m] = max[n] X0[m, n] + M0[n] where not B0[n]",
         "P[m, n] = exp(X0[m, n] + M0[n] - R[m])",
         "O[m] = sum[n] P[m, n] * X2[n] where not B0[n]"],
    ),
    "a statement that a needless loop repeats": chain(
        {"X0": "mkn", "B0": "m:bool", "K": "mnk:bool"},
        ["K[m, n, k] = B0[m]", "S[n] = sum[k, m] X0[m, k, n]",
         "V[n] = sum[k, m] X0[m, k, n] * (X0[m, k, n] - S[n] / 30.0)", "N[n, k] = V[n] * V[n]"],
        ("K", "N"),
    ),
}  # fmt: skip


def some(c: Chain, most: int) -> Iterator[Schedule]:
    """So many of a chain's schedules, from first to last."""
    every = _plans(c)
    for plan, tiles in every[:: max(1, len(every) // most)][:most]:
        yield plan.schedule(tiles)


@cache
def _plans(c: Chain) -> list[tuple[Plan, dict[str, int]]]:
    return list(plans(c))


def filled(c: Chain, seed: int) -> dict[str, np.ndarray]:
    """Flat inputs, some rows of a mask minus infinity throughout."""
    found = memory(c, seed)
    if "M0" in found and len(c.tensor("M0").shape) > 1:
        found["M0"].reshape(AXES["m"], -1)[1::2] = -np.inf
    return found


def disagree(c: Chain, flat: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> str:
    """What is wrong with outputs, or nothing; as precise as what inputs are stored in."""
    half = any(c.tensor(n).dtype == "bfloat16" for n in c.inputs)
    x = {n: seen(c, n, a) for n, a in flat.items()}
    expected = plain(c, x)
    for name in c.outputs:
        want, got = expected[name], np.asarray(found[name], np.float64)
        whole = c.tensor(name).dtype not in ("float32", "bfloat16")
        limit = 0.0 if whole else (2e-2 if half else 2e-5) * (1 + np.abs(want))
        with np.errstate(all="ignore"):
            if not ((got == want) | (np.abs(got - want) <= limit)).all():
                return f"{name}: {got} instead of {want}"
    return ""
