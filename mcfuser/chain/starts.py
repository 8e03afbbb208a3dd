"""Where in memory a chain's arrays begin: not part of the chain, but for their alignment.

Two attention chains that read their keys at other places of one product's result are one chain,
with one kernel, which is given another pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mcfuser.chain.values import BYTES, Chain

ALIGNED = 128
"""Bytes: a line of any device's cache; vectors and tensor maps need less."""
NO_STARTS: Mapping[str, int] = MappingProxyType({})
"""Every array begins where its argument does."""


def begun(chain: Chain) -> tuple[Chain, Mapping[str, int]]:
    """The chain as its inputs' arrays begin at the last multiple of ALIGNED bytes before the
    tensors do, and the elements of these arrays' arguments that are before that, by input."""
    starts = {}
    for name in chain.inputs:
        t = chain.tensor(name)
        step = ALIGNED // BYTES[t.dtype]
        if t.offset >= step:
            starts[name] = t.offset - t.offset % step
    if not starts:
        return chain, NO_STARTS
    tensors = tuple(
        replace(t, offset=t.offset - starts[t.name]) if t.name in starts else t
        for t in chain.tensors
    )
    return replace(chain, tensors=tensors), MappingProxyType(starts)
