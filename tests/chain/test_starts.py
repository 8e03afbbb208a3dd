"""Chains that read the same at other places of their arrays are one chain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import BYTES, NO_STARTS, Chain, attention, begun, flat_size
from mcfuser.chain.starts import ALIGNED

STRIDES = (8192, 256, 1)


def reading(offset: int, dtype: str = "float16") -> Chain:
    """Attention that reads its keys from an element of a larger array on."""
    chain = attention(2, 32, 64, 16, 16, dtype)
    tensors = [replace(t, strides=STRIDES, offset=offset) if t.name == "K" else t
               for t in chain.tensors]  # fmt: skip
    return replace(chain, tensors=tuple(tensors))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("offset", [0, 1, 63, 64, 65, 1000, 4096])
def test_the_array_begins_at_a_whole_line(offset: int, dtype: str) -> None:
    chain, starts = begun(reading(offset, dtype))
    line = ALIGNED // BYTES[dtype]
    assert chain.tensor("K").offset == offset % line
    assert starts == ({"K": offset // line * line} if offset >= line else {})
    assert chain.tensor("Q") == reading(offset, dtype).tensor("Q")
    assert begun(chain) == (chain, NO_STARTS)


def test_what_lies_alike_has_one_key_and_one_size() -> None:
    one, other, odd = (begun(reading(offset))[0] for offset in (128, 4096, 4100))
    assert one.key == other.key != odd.key
    assert reading(128).key != reading(4096).key
    assert flat_size(other, "K") == flat_size(reading(0), "K")
