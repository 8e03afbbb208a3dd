"""InputShapes as users write them, with and without ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.arguments.shapes import ranged_shapes, shapes
from mcfuser.errors import InputError
from mcfuser.extents import ExtentRange, InputExtent

EXTENTS = st.one_of(
    st.integers(0, 999_999_999),
    st.tuples(st.integers(1, 999_999_998), st.integers(1, 9)).map(
        lambda p: ExtentRange(p[0], min(p[0] + p[1], 999_999_999))
    ),
)


@given(st.lists(EXTENTS, min_size=1, max_size=6))
def test_what_is_written_is_read(extents: list[InputExtent]) -> None:
    word = "name=1=" + "x".join(map(str, extents))
    assert ranged_shapes([word]) == {"name=1": tuple(extents)}


def test_a_range_of_one_extent_is_a_number() -> None:
    assert ranged_shapes(["x=4..4x2"]) == {"x": (4, 2)} == shapes(["x=4..4x2"])


@pytest.mark.parametrize("word", ["x=1..", "x=..4", "x=1...4", "x=0..4", "x=1..4..9", "x=a..b"])
def test_a_malformed_range_is_named(word: str) -> None:
    with pytest.raises(InputError, match=r"not of the form input=1x128 or input=1x16\.\.512"):
        ranged_shapes([word])


def test_a_range_ends_after_it_begins() -> None:
    with pytest.raises(InputError, match=r"input 'x' has the range 9\.\.4, which ends before"):
        ranged_shapes(["x=1x9..4"])


def test_one_shape_is_asked_for_where_ranges_are_not_taken() -> None:
    with pytest.raises(InputError, match=r"input 'x' has the range 4\.\.9.*give an extent, 9"):
        shapes(["x=1x4..9"])
