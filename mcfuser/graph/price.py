"""Prices of regions: what one kernel is expected to take for a region and its epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import relax

from mcfuser.chain import Chain, flops, nbytes
from mcfuser.graph.dataflow import FLOATS, dtype, extents
from mcfuser.graph.lift import Lifted, lift
from mcfuser.graph.regions import epilogues
from mcfuser.graph.selection import Selection
from mcfuser.graph.views import Unliftable

Price = Callable[[Chain], float]
"""The seconds that one kernel is expected to take for a chain; infinity where there is none."""

STARTING = 1e-6
"""Seconds that starting a kernel takes, where no model of the device says."""
TICK = 1e-12
"""Seconds. Prices are whole numbers of it, so that equal sums are equal."""
NEVER = 10**15
"""The price, in ticks, of a chain that has no kernel: 1000 seconds."""


def roofline(chain: Chain, peak: float, bandwidth: float) -> float:
    """The seconds that a kernel takes where its products run at the `peak` (flop/s), or where all
    that it reads and writes is in memory, at its `bandwidth` (byte/s)."""
    moved = sum(nbytes(chain, t) for t in (*chain.inputs, *chain.outputs))
    return STARTING + max(flops(chain) / peak, moved / bandwidth)


def ticks(chain: Chain, price: Price, known: dict[str, int]) -> int:
    """The price of a chain in ticks, `known` by its key from then on; NEVER if it has no kernel."""
    key = chain.key
    if key not in known:
        seconds = price(chain)
        known[key] = round(seconds / TICK) if math.isfinite(seconds) else NEVER
    return known[key]


@dataclass(frozen=True)
class Prices:
    """Prices of chains, each asked for once, and of the values of a module that become chains. What
    is `known`, by chains' keys, may be known from another way to store the values."""

    chosen: Selection
    price: Price
    known: dict[str, int] = field(default_factory=dict)
    found: dict[tuple[relax.Var, ...], str | Unliftable] = field(default_factory=dict)

    def of(self, members: tuple[relax.Var, ...], name: str) -> int:
        """The price, in ticks, of a kernel that computes these values with the longest epilogue
        that can be lifted: of the chain that has this name, if it is chosen, for what is found of a
        chain as it is priced is kept until it is tuned. Raises Unliftable where there is no such
        chain."""
        return self.known[self.key(members, name)]

    def key(self, members: tuple[relax.Var, ...], name: str) -> str:
        """The key of that chain, which is priced. Raises Unliftable where there is none."""
        if members not in self.found:
            try:
                self.found[members] = self._priced(members, name)
            except Unliftable as why:
                self.found[members] = why
        found = self.found[members]
        if isinstance(found, Unliftable):
            raise Unliftable(str(found))
        return found

    def written(self, members: tuple[relax.Var, ...]) -> bool:
        """Whether there is a chain of these values."""
        try:
            with_epilogue(self.chosen, members, "region")
        except Unliftable:
            return False
        return True

    def _priced(self, members: tuple[relax.Var, ...], name: str) -> str:
        if extents(members[-1]) is None or dtype(members[-1]) not in FLOATS:
            raise Unliftable(f"its result is {dtype(members[-1])}")
        _, lifted = with_epilogue(self.chosen, members, name)
        ticks(lifted.chain, self.price, self.known)
        return lifted.chain.key


def with_epilogue(
    chosen: Selection, members: tuple[relax.Var, ...], name: str
) -> tuple[tuple[relax.Var, ...], Lifted]:
    """The members with the longest epilogue that can be lifted with them, and their chain, called
    `name`. Raises Unliftable, as the last attempt did, where there is none."""
    refusal = Unliftable("no chain ends with it")
    for epilogue in epilogues(chosen, members[-1]):
        whole = tuple(dict.fromkeys((*members, *epilogue)))
        try:
            return whole, lift(chosen.flow, whole, frozenset(chosen.closed), name)
        except Unliftable as why:
            refusal = why
    raise refusal
