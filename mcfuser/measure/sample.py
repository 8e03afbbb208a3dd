"""Fewer positions of a chain: what it computes at some of them, without computing the rest.

An axis that every operator keeps at its own positions (rows, heads) may be thinned: the result is
a chain over the chosen positions, whose inputs are the chosen parts of the inputs. So a kernel for
a long sequence is checked at sampled rows, at the cost of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Axis, Chain, Operator, Tensor, sources
from mcfuser.expr import Expr, Index, Read, axis, rewrite
from mcfuser.space.reference import Array

TILES = (256, 128, 64, 32, 16)
"""The rows where the last tile of these sizes begins are always among the sampled ones."""
LEAST = 16
"""Positions of an axis that are looked at, at least."""
COPIED = 16.0
"""Flops that the reference could do while it makes one element of an input a float64 in its place:
that takes longer than a row's products with it."""


@dataclass(frozen=True)
class ChainSample:
    """A chain over some positions of another one's axes; `positions` by axis, ascending."""

    whole: Chain
    chain: Chain
    positions: Mapping[str, NDArray[np.int64]]

    def inputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The sample's inputs, from the whole inputs as the chain indexes them."""
        numbers = {_number(a): p.astype(np.int32) for a, p in self.positions.items()}
        return {n: numbers[n] if n in numbers else self._part(n, arrays[n])
                for n in self.chain.inputs}  # fmt: skip

    def output(self, name: str, array: Array) -> Array:
        """The sampled part of an output."""
        return self._part(name, array)

    def _part(self, name: str, array: Array) -> Array:
        for i, a in enumerate(_dimensions(self.whole, name)):
            if a is not None and a in self.positions:
                array = array.take(self.positions[a], axis=i)
        return array


def sample_chain(chain: Chain, budget: float, seed: int) -> ChainSample:
    """The chain at as many positions as `budget` flops of the reference allow.

    Axes are thinned, the longest first, down to LEAST positions; the first and last position and
    those around the last tile's start come first, the others at random. Where no axis may be
    thinned, or all of it fits, the sample is the whole.
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
    """The axes that may be thinned: reduced by no operator, and only ever read as they are."""
    refused = {a for o in chain.operators for a in o.over}
    for o in chain.operators:
        for r in sources(o):
            refused |= {a for i in r.indices if i.plain is None for a in i.axes}
            found = _dimensions(chain, r.tensor)
            refused |= {a for i, known in zip(r.indices, found, strict=True)
                        if (a := i.plain) is not None and known != a}  # fmt: skip
    return tuple(a.name for a in chain.axes if a.name not in refused)


def _dimensions(chain: Chain, name: str) -> tuple[str | None, ...]:
    """For each dimension of a tensor the axis that its first reader puts there."""
    writers = {o.out: o for o in chain.operators}
    if name in writers:
        return writers[name].axes
    for o in chain.operators:
        for r in sources(o):
            if r.tensor == name:
                return tuple(i.plain for i in r.indices)
    return (None,) * len(chain.tensor(name).shape)


def _cost(chain: Chain, counts: Mapping[str, int]) -> float:
    """Flops, and what else takes as long, at so many positions of some axes."""

    def extent(a: str) -> int:
        return counts.get(a, chain.size(a))

    done = sum(2.0 * math.prod(map(extent, o.related)) for o in chain.operators)
    for name in chain.inputs:
        found = zip(_dimensions(chain, name), chain.shape(name), strict=True)
        done += COPIED * math.prod(d if a is None else extent(a) for a, d in found)
    return done


def _positions(extent: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many positions of an axis, the ends and the edges of its last tiles among them."""
    edges = [0, extent - 1]
    for tile in TILES:
        start = (-(-extent // tile) - 1) * tile
        edges += [start, start - 1] if start > 0 else []
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

    def moved(o: Operator) -> Operator:
        domain = rewrite(o.domain, leaf) if o.domain is not None else None
        return replace(o, body=rewrite(o.body, leaf), domain=domain)

    operators = tuple(moved(o) for o in chain.operators)
    used = {r.tensor for o in operators for r in sources(o)}
    numbers = [Tensor(_number(a), (a,), "int32") for a in positions if _number(a) in used]
    axes = tuple(
        Axis(a.name, len(positions[a.name])) if a.name in positions else a for a in chain.axes
    )
    tensors = tuple(_resized(chain, t, positions) for t in chain.tensors)
    return Chain(chain.name, axes, (*tensors, *numbers), operators, chain.outputs)


def _resized(chain: Chain, t: Tensor, positions: Collection[str]) -> Tensor:
    """The tensor with as many elements along its dimensions as there are positions."""
    found = zip(t.shape, _dimensions(chain, t.name), strict=True)
    shape = tuple(a if a is not None and a in positions else d for d, a in found)
    return replace(t, shape=shape, strides=None, offset=0)


def _number(a: str) -> str:
    """The tensor that holds an axis's positions."""
    return f"position_of_{a}"
