"""How far the results of a module may be from onnxruntime's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

QUANTIZED = "quantized"
"""The type of a model's values between quantizations: a number may be rounded to the next one."""
TOLERANCE: Mapping[str, float] = {
    "float16": 2e-2, "tf32": 2e-2, "bfloat16": 1e-1, QUANTIZED: 5e-2
}  # fmt: skip
"""The largest norm-wise relative error that passes, by element type; _EXACT for other types."""
_EXACT = 1e-4


def tolerance(types: Iterable[str]) -> float:
    """The largest norm-wise relative error that passes where values of these types take part."""
    return max((TOLERANCE.get(t, _EXACT) for t in types), default=_EXACT)
