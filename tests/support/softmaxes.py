"""A softmax and a product, written out: chains on which exponentials and masks are tested."""

from __future__ import annotations

import numpy as np

from mcfuser.chain import Chain, from_json
from mcfuser.space.reference import evaluate

SHAPES = {"Q": "mk", "K": "nk", "V": "nh", "M": "mn", "a": "m", "L": "m"}


def softmax(x: str, where: str = "", *more: str, outputs: tuple[str, ...] = ("O",)) -> Chain:
    """softmax(x) V over rows of m, x an expression of the scores S."""
    inside = f" where {where}" if where else ""
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        f"X[m, n] = {x}",
        f"R[m] = max[n] X[m, n]{inside}",
        "P[m, n] = exp(X[m, n] - R[m])",
        f"Z[m] = sum[n] P[m, n]{inside}",
        f"U[m, h] = sum[n] P[m, n] * V[n, h]{inside}",
        "O[m, h] = U[m, h] / Z[m]",
        *more,
    ]
    words = " ".join(lines)
    used = {t: list(s) for t, s in SHAPES.items() if f"{t}[" in words}
    tensors = {t: {"shape": s} for t, s in used.items()}
    extents = {"m": 6, "n": 40, "k": 8, "h": 8}
    return from_json({"name": "softmax", "axes": extents, "tensors": tensors,
                      "operators": lines, "outputs": list(outputs)})  # fmt: skip


def values(c: Chain) -> dict:
    rng = np.random.default_rng(0)
    found = {n: rng.standard_normal(c.shape(n)) for n in c.inputs}
    if "L" in found:
        found["L"] = np.asarray([0, 1, 16, 17, 40, 0], float)
    return found


def bodies(c: Chain) -> dict[str, str]:
    return {o.out: str(o).partition(" = ")[2] for o in c.operators}


def same(one: Chain, other: Chain) -> None:
    x = values(one)
    a, b = evaluate(one, x), evaluate(other, x)
    for o in one.outputs:
        np.testing.assert_allclose(b[o], a[o], rtol=1e-12, atol=1e-14)
