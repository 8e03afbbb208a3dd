"""Loop bounds from domains: a loop skips the iterations that none of its reductions needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import assert_never

from mcfuser.expr import Affine, Call, Const, Expr, Index, Read, conjuncts, reads
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    SimpleStatement,
    Statement,
    Store,
    StorePartial,
    loops,
    statements,
)

PositionBounds = tuple[tuple[Affine, ...], tuple[Affine, ...]]
"""Lower and upper bounds of a position, inclusive."""


def bounds(domain: Expr | None, axis: str) -> PositionBounds:
    """The bounds of an axis that follow from the conjuncts of a domain that compare affine indices:
    causal `n <= m` bounds n by m from above, and m by n from below."""
    lo: list[Affine] = []
    hi: list[Affine] = []
    for condition in conjuncts(domain):
        for excess in _excesses(condition):
            terms = Counter(dict(excess.terms))
            c = terms.pop(axis, 0)
            others = [(a, x) for a, x in terms.items() if x]
            if c == 1:
                hi.append(Affine(tuple((a, -x) for a, x in others), -excess.offset))
            elif c == -1:
                lo.append(Affine(tuple(others), excess.offset))
    return tuple(dict.fromkeys(lo)), tuple(dict.fromkeys(hi))


def _excesses(e: Expr) -> Iterator[Affine]:
    """Affine indices that are at most 0 wherever a comparison holds."""
    if not isinstance(e, Call):
        return
    if e.op == "not" and isinstance(e.args[0], Call) and e.args[0].op in ("lt", "le"):
        inner = e.args[0]
        yield from _excesses(Call("le" if inner.op == "lt" else "lt", inner.args[::-1]))
    if e.op not in ("lt", "le", "eq"):
        return
    left, right = (_affine(x) for x in e.args)
    if left is None or right is None:
        return
    less = _plus(left, right, -1)
    yield replace(less, offset=less.offset + (e.op == "lt"))
    if e.op == "eq":
        yield _plus(right, left, -1)


def _affine(e: Expr) -> Affine | None:
    if isinstance(e, Index):
        return Affine(((e.axis, 1),))
    if isinstance(e, Const):
        whole = math.isfinite(e.value) and e.value == int(e.value)
        return Affine((), int(e.value)) if whole else None
    if not isinstance(e, Call) or e.op not in ("add", "sub", "mul", "neg"):
        return None
    parts = [_affine(x) for x in e.args]
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    if e.op == "neg":
        (negated,) = known
        return _plus(Affine(()), negated, -1)
    if e.op == "mul":
        number = next((p for p in known if not p.terms), None)
        other = known[1] if number is known[0] else known[0]
        return _plus(Affine(()), other, number.offset) if number is not None else None
    return _plus(known[0], known[1], 1 if e.op == "add" else -1)


def _plus(a: Affine, b: Affine, times: int) -> Affine:
    terms = Counter(dict(a.terms))
    for name, c in b.terms:
        terms[name] += c * times
    return Affine(tuple((n, c) for n, c in terms.items() if c), a.offset + b.offset * times)


def bounded(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements in which serial loops have bounds.

    A loop gets the bounds that the domains of all its reductions have in common, where iterations
    outside these domains change no value that is read afterwards. A bound by an axis whose loops
    are all outside the loop's own nest is left out: it is no bound of a single iteration.
    """
    users = Counter(name for s, _ in statements(body) for name in _uses(s))
    iterating = {loop.axis for loop in loops(body)}

    def go(items: Sequence[Statement], around: frozenset[str]) -> tuple[Statement, ...]:
        return tuple(iteration(s, around | {s.axis}) if isinstance(s, Loop) else s for s in items)

    def iteration(loop: Loop, around: frozenset[str]) -> Loop:
        inner = replace(loop, body=go(loop.body, around))
        return _bounded(inner, users, iterating - around)

    return go(body, frozenset())


def _bounded(loop: Loop, users: Counter[str], other: AbstractSet[str]) -> Loop:
    body = loop.body
    inside = [s for s, _ in statements(body)]
    if loop.kind != "serial" or any(isinstance(s, (Store, StorePartial, Combine)) for s in inside):
        return loop
    here = Counter(name for s in inside for name in _uses(s))
    limits: list[PositionBounds] = []
    for s in inside:
        if isinstance(s, Compute) and loop.axis in s.operator.over:
            limits.append(bounds(s.operator.domain, loop.axis))
        elif isinstance(s, Compute) and users[s.buffer] != here[s.buffer]:
            return loop
    lo = _common([b[0] for b in limits], other)
    hi = _common([b[1] for b in limits], other)
    return replace(loop, lo=lo, hi=hi)


def _common(limits: Sequence[Sequence[Affine]], other: AbstractSet[str]) -> tuple[Affine, ...]:
    """The bounds that all reductions of a loop have in common, but for those by axes in `other`."""
    first = limits[0] if limits else ()
    return tuple(i for i in first if all(i in b for b in limits) and not other & {*i.axes})


def _uses(s: SimpleStatement) -> tuple[str, ...]:
    """The buffers whose values a statement reads; of a reduction or repair, not the one it updates
    unless its expression reads it."""
    if isinstance(s, Compute):
        needed = (*reads(s.body), *(reads(s.domain) if s.domain is not None else ()))
        return tuple(r.tensor for r in needed)
    if isinstance(s, Repair):
        return tuple(r.tensor for r in reads(s.h) if isinstance(r, Read))
    if isinstance(s, Combine):
        return tuple(n for r in s.repairs for n in (r.old, r.new))
    if isinstance(s, (SaveOld, Store, StorePartial)):
        return (s.buffer,)
    if isinstance(s, (Load, Init)):
        return ()
    assert_never(s)
