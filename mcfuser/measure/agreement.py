"""Compares what a kernel computed with the reference: each element, and all of them together."""

from __future__ import annotations

import numpy as np

from mcfuser.space.reference import Array

MARKS = 1e37
"""Larger magnitudes are marks (the maximum of an empty row), not results: they do not count in
norms."""
NOISE = 1e-12
"""An expected value has cancelled where it is smaller than this times the magnitudes that were
rounded to compute it: its float64 digits are noise, and it does not count in norms either."""
LEAST = 1e-37
"""Smaller values may be stored as zero."""


def disagreement(
    found: Array, expected: Array, allowed: Array, limit: float, overall: bool
) -> float | str:
    """The norm-wise relative error of an output, or one sentence that says how it is wrong.

    `expected` is float64, of the shape of `found`. Where it is infinite, `found` must be, too.
    Where it is NaN, the chain is not defined, and any value is right. Each other element may differ
    by `limit` times `allowed` (mcfuser.measure.rounding) and, if `overall`, all of them together by
    `limit` times their norm. Marks and values that cancelled do not count in the norms, unless
    there is nothing else.
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
        difference = np.maximum(off[judged] - LEAST, 0.0)
        error = float(np.linalg.norm(difference)) / (float(np.linalg.norm(scale[judged])) or 1.0)
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
