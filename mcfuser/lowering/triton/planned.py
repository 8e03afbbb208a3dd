"""Facts about a plan that hold for all of its candidates, whatever their tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from mcfuser.chain import BYTES, Product, contiguous_axes
from mcfuser.expr import reads
from mcfuser.lowering.deferred import deferred
from mcfuser.lowering.loops import lowered_body
from mcfuser.lowering.triton.address import side_by_side
from mcfuser.lowering.triton.products import is_wide, products
from mcfuser.space.plan import Plan
from mcfuser.space.statement import (
    Buffer,
    Compute,
    Load,
    Loop,
    SimpleStatement,
    Statement,
    loops,
    statements,
)

PLANS = 256
"""Plans whose facts are kept: about as many as one chain has, whose facts are asked for often."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan's statements as Triton runs them."""

    plan: Plan

    @cached_property
    def body(self) -> tuple[Statement, ...]:
        """The statements, in which the loops that are written out are marked `unrolled`."""
        return lowered_body(self.plan)

    @cached_property
    def points(self) -> tuple[tuple[SimpleStatement, tuple[Loop, ...]], ...]:
        """The statements in their order, each with the loops around it."""
        return tuple(statements(self.body))

    @cached_property
    def buffers(self) -> Mapping[str, Buffer]:
        return {b.name: b for b in self.plan.placed[0]}

    @cached_property
    def products(self) -> Mapping[str, Product]:
        """The matrix products by operator, their reads in terms of buffers."""
        return products(self.plan.program.chain, self.buffers, self.body)

    @cached_property
    def wide(self) -> frozenset[str]:
        """The products whose operands enter them in float32, by operator."""
        chain = self.plan.program.chain
        return frozenset(
            s.operator.out
            for s, _ in self.points
            if isinstance(s, Compute)
            and s.operator.out in self.products
            and is_wide(chain, self.buffers, s)
        )

    @cached_property
    def deep(self) -> frozenset[str]:
        """The products whose right operand is loaded from where positions along the depth lie side
        by side, by operator."""
        chain = self.plan.program.chain
        beside = {s.buffer: contiguous_axes(chain, s.read) for s in self.loads}
        return frozenset(
            out for out, p in self.products.items()
            if not {*p.depth}.isdisjoint(beside.get(p.right.tensor, ()))
        )  # fmt: skip

    @cached_property
    def operands(self) -> frozenset[str]:
        """Buffers that enter a product as they are."""
        return frozenset(r.tensor for p in self.products.values() for r in (p.left, p.right))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The loads of products' operands."""
        every = (s for s, _ in self.points if isinstance(s, Load))
        return tuple(s for s in every if s.buffer in self.operands)

    @cached_property
    def vectors(self) -> Mapping[str, int]:
        """Bytes of a loaded buffer that a thread loads at once, at most."""
        chain, found = self.plan.program.chain, dict[str, int]()
        for s, _ in self.points:
            if isinstance(s, Load):
                tensor = chain.tensor(s.read.tensor)
                count = side_by_side(chain, tensor, s.read.indices)
                found[s.buffer] = count * BYTES[tensor.dtype]
        return found

    @cached_property
    def last_reads(self) -> Mapping[str, int]:
        """The number of the last computation that reads a buffer, by buffer."""
        last = dict[str, int]()
        for i, (s, _) in enumerate(self.points):
            if isinstance(s, Compute):
                last |= dict.fromkeys((r.tensor for r in reads(s.body)), i)
        return last

    @cached_property
    def defers(self) -> bool:
        """Some loop has a deferred product."""
        inside = ((loop, [s for s, _ in statements(loop.body)]) for loop in loops(self.body))
        return any(
            deferred(each, loop.axis, self.products)
            for loop, each in inside if loop.kind == "serial"
        )  # fmt: skip


@lru_cache(PLANS)
def planned(plan: Plan) -> Planned:
    """The facts about a plan, computed once."""
    return Planned(plan)
