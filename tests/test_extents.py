"""InputShapes as values and as JSON."""

from __future__ import annotations

import json

import pytest

from mcfuser.extents import ExtentRange, from_json, highest, ranged, to_json

MIXED = {"x": (ExtentRange(1, 8), 16), "y": (3,)}


def test_shapes_survive_json() -> None:
    document = json.loads(json.dumps(to_json(MIXED)))
    assert document == {"x": ["1..8", 16], "y": [3]}
    assert from_json(document) == MIXED


def test_a_damaged_range_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        from_json({"x": ["1-8"]})


def test_ranges_are_seen_and_closed() -> None:
    assert ranged(MIXED) and not ranged(highest(MIXED))
    assert highest(MIXED) == {"x": (8, 16), "y": (3,)}
