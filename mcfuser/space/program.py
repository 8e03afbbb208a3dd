"""Programs: a chain made ready for placement, and what is known of it before any expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mcfuser.algebra.absorb import merge_into_maxima
from mcfuser.algebra.copies import without_copies
from mcfuser.algebra.exponent import base_two, infinite, unbiased
from mcfuser.algebra.fold import fold
from mcfuser.algebra.hoist import hoist
from mcfuser.algebra.inline import inline_maps
from mcfuser.algebra.masks import masked_once
from mcfuser.algebra.quotient import guarded
from mcfuser.algebra.roll import Refusal, Roll, rolls
from mcfuser.algebra.whole import exact
from mcfuser.chain import Chain, Operator, batch_axes, sources, without_dead
from mcfuser.expr import DISCRETE
from mcfuser.space.expression import loop_axes
from mcfuser.space.tiles import windowed


@dataclass(frozen=True)
class Program:
    """A chain that is ready for placement under any tiling expression: its repairs (`rolls`), and
    the reductions that need no mask because what they read is masked already (`unmasked`,
    algebra.masks)."""

    chain: Chain
    rolls: tuple[Roll | Refusal, ...]
    unmasked: frozenset[str] = frozenset()

    @cached_property
    def batch(self) -> tuple[str, ...]:
        return tuple(a for a in batch_axes(self.chain) if self.chain.size(a) > 1)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes with a cross-tile loop."""
        return loop_axes(self.chain)

    @cached_property
    def windows(self) -> frozenset[str]:
        """Those that lie along windows, of which tiles are single positions or several."""
        return windowed(self.chain, self.axes)

    @cached_property
    def repairs(self) -> Mapping[tuple[str, str, str], Roll]:
        return {(r.target, r.moving, r.axis): r for r in self.rolls if isinstance(r, Roll)}

    @cached_property
    def ordinary(self) -> frozenset[str]:
        """The maxima that are above the lowest number in every row: they have no domain, and no
        mask is written into the values that they are taken of."""
        tops = (o for o in self.chain.operators if o.reduce == "max" and o.domain is None)
        return frozenset(
            o.out for o in tops
            if unbiased(self.chain, o.body, o.over) and not infinite(self.chain, o.body)
            and self.chain.tensor(o.out).dtype not in DISCRETE
        )  # fmt: skip

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """The operators that each operator needs, directly or not."""
        needed: dict[str, frozenset[str]] = {}
        for o in self.chain.operators:
            direct = {r.tensor for r in sources(o)} - set(self.chain.inputs)
            needed[o.out] = frozenset(direct).union(*(needed[d] for d in direct))
        return needed

    def rolled(self, o: Operator, loop: str) -> bool:
        """`o` may run inside `loop` while reductions over it that `o` needs still move."""
        needs = [p for p in self.ancestors[o.out] if loop in self.chain.operator(p).over]
        if not needs:
            return True
        if loop not in o.related:
            return False
        if loop in o.over:
            moving = {m for t, m, a in self.repairs if t == o.out and a == loop}
            refused = any(
                isinstance(r, Refusal) and r.target == o.out and r.axis == loop for r in self.rolls
            )
            # a value that moves along an inner loop too is not where its last iteration left it
            wider = any(set(self.chain.operator(m).over) - set(o.over) for m in moving)
            return bool(moving) and not refused and not wider
        escapes = o.out in self.chain.outputs or o.reduce != "none"
        return not escapes and all(self.rolled(c, loop) for c in self.chain.readers(o.out))


def program(chain: Chain, shifts: bool = True) -> Program:
    """The chain made ready for placement.

    Copies and unread operators are dropped, maps that are read off-centre are inlined, quotients
    guarded, maps merged into maxima, exponentials taken to base two, factors (and with `shifts`,
    shifts) hoisted out of sums, maps folded, repairs derived, and shared masks taken once. Raises
    ChainError where a reduction is read off-centre (algebra.inline).
    """
    plain = exact(inline_maps(without_copies(without_dead(chain))))
    joined = base_two(merge_into_maxima(guarded(plain)))
    ready = fold(hoist(joined, shifts))
    masked, unmasked = masked_once(ready)
    return Program(masked, rolls(ready), unmasked)
