"""Where a tensor's elements lie in its array."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.chain import flat_size, gemm, strides_of

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
