"""Where the axes of a chain lie in a value, through reshapes and transposes."""

from __future__ import annotations

import pytest

from mcfuser.chain import dense
from mcfuser.graph.views import Straddle, Unliftable, broadcast, within


def test_dense_strides_are_row_major() -> None:
    assert dense((2, 3, 4)) == (12, 4, 1)
    assert dense(()) == ()


def test_an_axis_lies_along_the_dimension_of_its_stride() -> None:
    assert within({0: 12, 1: 4, 2: 1}, {0: 2, 1: 3, 2: 4}, (2, 3, 4)) == [
        [(0, 1)], [(1, 1)], [(2, 1)],
    ]  # fmt: skip


def test_several_axes_lie_along_one_dimension_outermost_first() -> None:
    assert within({1: 1, 0: 4}, {0: 3, 1: 4}, (12,)) == [[(0, 4), (1, 1)]]


def test_dimensions_of_extent_one_have_no_axis() -> None:
    assert within({0: 4, 1: 1}, {0: 3, 1: 4}, (1, 3, 1, 4)) == [[], [(0, 1)], [], [(1, 1)]]


def test_an_axis_across_a_dimensions_end_says_where_it_can_be_cut() -> None:
    with pytest.raises(Straddle) as raised:
        within({0: 1}, {0: 12}, (3, 4))
    assert (raised.value.axis, raised.value.inner) == (0, 4)


def test_an_axis_of_every_other_position_may_end_before_a_whole_step() -> None:
    """As the rows of a convolution with a stride of 2 over 5 x 5 positions."""
    layout, sizes = {0: 10, 1: 2}, {0: 3, 1: 3}
    assert within(layout, sizes, (5, 5)) == [[(0, 2)], [(1, 2)]]
    assert within(layout, sizes, (25,)) == [[(0, 10), (1, 2)]]
    with pytest.raises(Straddle):  # the second axis fills the steps of the first
        within({0: 4, 1: 1}, {0: 4, 1: 4}, (2, 8))
    with pytest.raises(Unliftable):  # its last step ends behind the dimension
        within({0: 4, 1: 1}, {0: 3, 1: 4}, (2, 5))


@pytest.mark.parametrize(
    ("layout", "sizes", "extents"),
    [({0: 1}, {0: 10}, (3, 4)), ({0: 100}, {0: 2}, (3, 4)), ({0: 3}, {0: 4}, (3, 4))],
)
def test_what_no_cut_makes_fit_cannot_be_lifted(
    layout: dict[int, int], sizes: dict[int, int], extents: tuple[int, ...]
) -> None:
    with pytest.raises(Unliftable):
        within(layout, sizes, extents)


def test_a_broadcast_operand_is_aligned_to_the_right_and_varies_along_what_it_has() -> None:
    along = [[(0, 1)], [(1, 1)], [(2, 1)]]
    assert broadcast(along, (2, 3, 4)) == {0: 12, 1: 4, 2: 1}
    assert broadcast(along, (4,)) == {2: 1}
    assert broadcast(along, (3, 1)) == {1: 1}
    assert broadcast([[(0, 4), (1, 1)]], (12,)) == {0: 4, 1: 1}
