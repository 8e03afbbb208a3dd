"""Samples a chain: the chain that computes its results at some positions only.

An axis may be sampled if no operator reduces it and every read has it as it is (rows, heads). The
sample is a chain with shorter axes, whose inputs are parts of the whole inputs. So a kernel for a
long sequence is checked at some rows, for the price of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Axis, Chain, Tensor, rewritten, sources
from mcfuser.expr import Expr, Index, Read, axis
from mcfuser.space.reference import Array

TILES = (256, 128, 64, 32, 16)
"""Where the last tile of each of these sizes begins is always among the sampled positions."""
LEAST = 16
"""The smallest number of positions of an axis in a sample."""
COPIED = 16.0
"""The cost of preparing one element of an input (conversion to float64, layout), in flops of the
reference; it may exceed that of the products."""


@dataclass(frozen=True)
class ChainSample:
    """The part of the chain `whole` at some positions, as a `chain` of its own.

    `positions` has those of each sampled axis, ascending.
    """

    whole: Chain
    chain: Chain
    positions: Mapping[str, NDArray[np.int64]]

    def inputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The sample's inputs by name, given the whole inputs in the shapes that the chain gives
        them."""
        numbers = {_number(a): p.astype(np.int32) for a, p in self.positions.items()}
        return {
            n: numbers[n] if n in numbers else self._part(n, arrays[n]) for n in self.chain.inputs
        }

    def output(self, name: str, array: Array) -> Array:
        """The sampled part of an output."""
        return self._part(name, array)

    def _part(self, name: str, array: Array) -> Array:
        for i, a in enumerate(_dimensions(self.whole, name)):
            if a is not None and a in self.positions:
                array = array[(slice(None),) * i + (self.positions[a],)]  # `take` copies views
        return array


def sample_chain(chain: Chain, budget: float, seed: int) -> ChainSample:
    """A sample of a chain, with as many positions as `budget` flops of the reference allow.

    The longest axes are shortened first, down to LEAST positions. The ends of an axis and the
    positions around the starts of its last tiles are chosen first, the others at random. The sample
    is the whole chain where that fits the budget, or no axis may be sampled.
    """
    counts = {a: chain.size(a) for a in thinned(chain)}
    while counts and _cost(chain, counts) > budget and max(counts.values()) > LEAST:
        longest = max(counts, key=lambda a: counts[a])
        counts[longest] = max(LEAST, counts[longest] // 2)
    rng = np.random.default_rng(seed)
    positions = {
        a: _positions(chain.size(a), n, rng) for a, n in counts.items() if n < chain.size(a)
    }
    return ChainSample(chain, _thin(chain, positions), positions)


def thinned(chain: Chain) -> tuple[str, ...]:
    """The axes that may be sampled: no operator reduces them, and every read has them as they
    are."""
    refused = {a for o in chain.operators for a in o.over}
    for o in chain.operators:
        for r in sources(o):
            refused |= {a for i in r.indices if i.plain is None for a in i.axes}
            for index, known in zip(r.indices, _dimensions(chain, r.tensor), strict=True):
                if index.plain is not None and index.plain != known:
                    refused.add(index.plain)
    return tuple(a.name for a in chain.axes if a.name not in refused)


def _dimensions(chain: Chain, name: str) -> tuple[str | None, ...]:
    """The axis of each dimension of a tensor, as its writer or its first reader has it; None where
    the index is not one axis."""
    writers = {o.out: o for o in chain.operators}
    if name in writers:
        return writers[name].axes
    for o in chain.operators:
        for r in sources(o):
            if r.tensor == name:
                return tuple(i.plain for i in r.indices)
    return (None,) * len(chain.tensor(name).shape)


def _cost(chain: Chain, counts: Mapping[str, int]) -> float:
    """The cost of the reference, in flops, with `counts` positions of some axes."""

    def extent(a: str) -> int:
        return counts.get(a, chain.size(a))

    done = sum(2.0 * math.prod(map(extent, o.related)) for o in chain.operators)
    for name in chain.inputs:
        dimensions = zip(_dimensions(chain, name), chain.shape(name), strict=True)
        done += COPIED * math.prod(d if a is None else extent(a) for a, d in dimensions)
    return done


def _positions(extent: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` positions of an axis, among them its ends and the starts of its last tiles."""
    edges = [0, extent - 1]
    for tile in TILES:
        start = (-(-extent // tile) - 1) * tile
        edges += [start, start - 1] if start else []
    first = np.asarray(list(dict.fromkeys(edges)), np.int64)[:count]
    others = np.setdiff1d(np.arange(extent), first)
    chosen = rng.permutation(others)[: count - len(first)]
    return np.sort(np.concatenate([first, chosen]))


def _thin(chain: Chain, positions: Mapping[str, NDArray[np.int64]]) -> Chain:
    if not positions:
        return chain

    def leaf(node: Read | Index) -> Expr:
        if isinstance(node, Index) and node.axis in positions:
            return Read(_number(node.axis), (axis(node.axis),))
        return node

    operators = tuple(rewritten(o, leaf) for o in chain.operators)
    used = {r.tensor for o in operators for r in sources(o)}
    numbers = [Tensor(_number(a), (a,), "int32") for a in positions if _number(a) in used]
    axes = tuple(
        Axis(a.name, len(positions[a.name])) if a.name in positions else a for a in chain.axes
    )
    tensors = tuple(_resized(chain, t, positions) for t in chain.tensors)
    return replace(chain, axes=axes, tensors=(*tensors, *numbers), operators=operators)


def _resized(chain: Chain, t: Tensor, positions: Collection[str]) -> Tensor:
    """The tensor of the sampled chain, dense, whose dimensions along sampled axes are shorter."""
    dimensions = zip(t.shape, _dimensions(chain, t.name), strict=True)
    shape = tuple(a if a is not None and a in positions else d for d, a in dimensions)
    return replace(t, shape=shape, strides=None, offset=0, padding=())


def _number(a: str) -> str:
    """The name of the input that holds the sampled positions of an axis."""
    return f"position_of_{a}"
