"""Whether what a kernel computed is what its chain means: every element, and all of them."""

from __future__ import annotations

import numpy as np

from mcfuser.space.reference import Array

MARKS = 1e37
"""Numbers beyond this stand for nothing, as a maximum of nothing does: they are no scale for
others."""
NOISE = 1e-12
"""An expected number that is a smaller part of what was rounded on the way to it has cancelled: its
float64 digits are rounding, and no scale either."""
LEAST = 1e-37
"""What is smaller than this may be zero."""


def disagreement(
    found: Array, expected: Array, allowed: Array, limit: float, overall: bool
) -> float | str:
    """The norm-wise relative error of an output, numbers beyond MARKS and those that cancelled left
    out, unless all did; or what is wrong.

    `expected` is float64; infinite elements must be found so. Each other one may be off by `limit`
    times what is `allowed` it (mcfuser.measure.rounding), and with `overall` all of them
    together by `limit` of their norm. What the chain does not define, NaN, is not looked at.
    """
    found = found.astype(np.float64)
    if np.isnan(expected).all() and expected.size:
        return "the chain is not defined on the inputs that were drawn"
    with np.errstate(all="ignore"):
        infinite = np.isinf(expected)
        other = np.isfinite(expected) & np.isfinite(allowed)
        off = np.abs(found - expected)
        usual = other & (np.abs(expected) < MARKS)
        known = usual & (np.abs(expected) > NOISE * allowed + LEAST)
        scale = expected if known.any() else allowed
        judged = known if known.any() else usual
        apart = np.maximum(off[judged] - LEAST, 0.0)
        error = float(np.linalg.norm(apart)) / (float(np.linalg.norm(scale[judged])) or 1.0)
        wrong = other & ~(off <= limit * allowed + LEAST)
    if (found[infinite] != expected[infinite]).any():
        return f"{_count(found[infinite] != expected[infinite])} should be infinite"
    if overall and not error <= limit:
        return f"its error is {error:.1e}, more than {limit:.0e}"
    if not wrong.any():
        return error
    at = int(np.argmax(np.where(wrong, off / (allowed + LEAST), -1.0)))
    there = f"{float(found.flat[at]):.6g} where {float(expected.flat[at]):.6g} is expected"
    return f"{_count(wrong)} too far off, {there}"


def _count(wrong: Array) -> str:
    n = int(np.count_nonzero(wrong))
    return f"{n} element{'s' if n > 1 else ''}"
