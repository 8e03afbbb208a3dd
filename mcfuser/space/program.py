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


@dataclass(frozen=True)
class Program:
    """A chain with what is known of it before any expression: rewritten sums, repairs, and the
    reductions whose domain is in what they read (algebra.masks)."""

    chain: Chain
    rolls: tuple[Roll | Refusal, ...]
    unmasked: frozenset[str] = frozenset()

    @cached_property
    def batch(self) -> tuple[str, ...]:
        return tuple(a for a in batch_axes(self.chain) if self.chain.size(a) > 1)

    @cached_property
    def repairs(self) -> Mapping[tuple[str, str, str], Roll]:
        return {(r.target, r.moving, r.axis): r for r in self.rolls if isinstance(r, Roll)}

    @cached_property
    def ordinary(self) -> frozenset[str]:
        """Maxima that are above the lowest number in every row: over all positions of their axes,
        of values that no mask is written in."""
        tops = (o for o in self.chain.operators if o.reduce == "max" and o.domain is None)
        return frozenset(
            o.out for o in tops
            if unbiased(self.chain, o.body, o.over) and not infinite(self.chain, o.body)
            and self.chain.tensor(o.out).dtype not in DISCRETE
        )  # fmt: skip

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """The operators that each operator needs, directly or not."""
        found: dict[str, frozenset[str]] = {}
        for o in self.chain.operators:
            direct = {r.tensor for r in sources(o)} - set(self.chain.inputs)
            found[o.out] = frozenset(direct).union(*(found[d] for d in direct))
        return found

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
    """The chain made ready for placement: copies and what nothing reads dropped, maps that are read
    elsewhere written into their readers, quotients guarded, maxima joined and taken to base two,
    sums hoisted (with `shifts`, shifts as well as factors), maps folded, repairs derived, masks
    taken once.

    Raises ChainError where a reduction is read elsewhere than where it is made."""
    plain = exact(inline_maps(without_copies(without_dead(chain))))
    joined = base_two(merge_into_maxima(guarded(plain)))
    ready = fold(hoist(joined, shifts))
    masked, unmasked = masked_once(ready)
    return Program(masked, rolls(ready), unmasked)
