"""Times and shapes in words."""

from __future__ import annotations

import pytest

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.shapes import shapes
from mcfuser.errors import InputError


def test_times_and_shapes_are_read() -> None:
    assert [seconds(w) for w in ("500ms", "60", "60s", "5m", "1h", "24h", " 1.5s ")] == [
        0.5, 60, 60, 300, 3600, 86400, 1.5,
    ]  # fmt: skip
    for bad in ("", "0", "-1", "1e3", "inf", "nan", "25h", "6０s", "5 m", "m", "1.", "9" * 400):
        with pytest.raises(InputError, match="timeout"):
            seconds(bad, most=LONGEST)
    assert shapes(["input=1x128", "a=b:0=007"]) == {"input": (1, 128), "a=b:0": (7,)}
