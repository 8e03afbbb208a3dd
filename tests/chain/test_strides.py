"""Where a tensor's elements lie in its array."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.chain import flat_size, gemm, strides_of
from tests.support.pictures import Windows, padded

CHAIN = gemm(2, 16, 8, 4, 4)


def test_a_tensor_without_strides_of_its_own_is_dense_and_row_major() -> None:
    assert CHAIN.shape("A") == (2, 16, 4)
    assert strides_of(CHAIN, "A") == (64, 4, 1)
    assert flat_size(CHAIN, "A") == 128


def test_strides_and_offset_say_how_far_the_last_element_lies() -> None:
    tensors = tuple(
        replace(t, strides=(1, 2, 40), offset=5) if t.name == "A" else t for t in CHAIN.tensors
    )
    other = replace(CHAIN, tensors=tensors)
    assert strides_of(other, "A") == (1, 2, 40)
    assert flat_size(other, "A") == 5 + 1 + 1 * 1 + 15 * 2 + 3 * 40


def test_an_array_has_nothing_of_its_padding() -> None:
    wide = Windows(9, 3, before=4, after=2)
    chain = padded(wide, Windows(7, 3, before=1, after=1), channels=3)
    assert chain.shape("A") == (1, 3, 13, 3, 7, 3)
    assert flat_size(chain, "A") == 3 * 9 * 7
