"""How far the results of a module may be from onnxruntime's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

QUANTIZED = "quantized"
"""The type of a model's values between quantizations: a number may be rounded to the next one."""
TOLERANCE: Mapping[str, float] = {
    "float16": 2e-2, "tf32": 2e-2, "bfloat16": 1e-1, QUANTIZED: 5e-2
}  # fmt: skip
"""The largest norm-wise relative error that passes, by element type; _EXACT for other types."""
_EXACT = 1e-4
_SMALLEST = float(np.finfo(np.float32).tiny)


def tolerance(types: Iterable[str]) -> float:
    """The largest norm-wise relative error that passes where values of these types take part."""
    return max((TOLERANCE.get(t, _EXACT) for t in types), default=_EXACT)


def difference(found: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """The norm of the difference divided by the norm of `expected`; infinite if shapes differ.

    NaN in both, or the same infinity, counts as equal. So does zero where NaN is expected: the
    softmax of an empty row is 0 here (docs/chains.md) and 0 / 0 in onnxruntime. Numbers that are
    closer than float32's smallest normal number count as equal, too: below it digits are lost, and
    all of them where a processor takes such numbers for 0.
    """
    if found.shape != expected.shape:
        return float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.abs(a - b) < _SMALLEST) | (np.isnan(b) & (np.isnan(a) | (a == 0)))
    differences = a[~same] - b[~same]
    if not np.isfinite(differences).all():
        return float("inf")
    return float(np.linalg.norm(differences) / (np.linalg.norm(b[np.isfinite(b)]) or 1.0))


def numberless(names: Sequence[str], expected: Sequence[NDArray[np.generic]]) -> tuple[str, ...]:
    """The outputs without any finite number in what is expected of them: nothing of theirs is
    compared but that they have none."""
    every = zip(names, expected, strict=True)
    return tuple(
        n for n, a in every
        if a.size and a.dtype.kind not in "biuSUO" and not np.isfinite(a.astype(np.float64)).any()
    )  # fmt: skip
