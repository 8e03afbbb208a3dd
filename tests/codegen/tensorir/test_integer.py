"""How vectors cover a number of positions, and integers in a kernel's text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.codegen.tensorir.integer import vectors

WIDTHS = (4, 8, 16, 32)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 300), st.sampled_from(WIDTHS), st.booleans())
def test_vectors_cover_every_position_and_none_beside(count: int, width: int, again: bool) -> None:
    taken = list[int]()
    for first, trips, lanes in vectors(str(count), width, again):
        assert lanes == 1 or (lanes in WIDTHS and lanes <= width)
        for v in range(int(trips)):
            taken += range(int(first) + v * lanes, int(first) + (v + 1) * lanes)
    assert set(taken) == set(range(count))
    assert again or len(taken) == count, "a sum must not take a position twice"


@pytest.mark.parametrize(
    ("count", "once", "again"),
    [(32, [16, 16], [16, 16]), (31, [16, 8, 4, 1, 1, 1], [16, 16]), (17, [16, 1], [16, 1]),
     (18, [16, 1, 1], [16, 4]), (14, [8, 4, 1, 1], [8, 8]), (7, [4, 1, 1, 1], [4, 4]),
     (5, [4, 1], [4, 1]), (3, [1, 1, 1], [1, 1, 1])],
)  # fmt: skip
def test_what_fills_no_vector_is_in_narrower_ones_or_in_one_that_begins_earlier(
    count: int, once: list[int], again: list[int]
) -> None:
    def lanes(twice: bool) -> list[int]:
        found = vectors(str(count), 16, twice)
        return [width for _, trips, width in found for _ in range(int(trips))]

    assert lanes(False) == once and lanes(True) == again


def test_of_a_number_known_at_run_time_only_the_rest_is_taken_one_by_one() -> None:
    assert [width for _, _, width in vectors("i_size", 16, again=True)] == [16, 1]
