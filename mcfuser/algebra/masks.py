"""Masks taken once: a domain that several reductions share is applied to the tensor they all read.

Outside its domain a reduction takes its identity. Where setting one source to the lowest number or
to zero outside the domain gives each of these reductions its identity there (`algebra.ranges` says
so), one selection at the source replaces the masks of all: of the maximum of the scores and the
sums of their exponentials, or of a sum and the sum of the squares.

A maximum over a row without any position of the domain is the lowest number. The difference of the
masked source and that maximum would be zero there, and its exponential one. Operators that read
both the maximum and the source therefore read 0 in place of the maximum in such a row
(`nothing_met`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.exponent import saturated, unbiased
from mcfuser.algebra.ranges import ANY, FINITE, ORDINARY, ZERO, ValueRange, value
from mcfuser.chain import LOWEST, Chain, Operator, Tensor, fresh, sources
from mcfuser.expr import (
    DISCRETE,
    Call,
    Const,
    Expr,
    Read,
    axes,
    conjuncts,
    read,
    reads,
    replaced,
)

INSIDE = "_inside"
"""The suffix of a source that holds one number outside the domain."""

Domain = frozenset[Expr]
"""The conditions that must all hold."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """The source takes `number` outside a domain; `bodies` are the bodies of the operators that
    read the masked source, and `unmasked` the reductions that need no mask any more."""

    source: Operator
    number: float
    bodies: Mapping[str, Expr]
    unmasked: tuple[str, ...]


def masked_once(chain: Chain) -> tuple[Chain, frozenset[str]]:
    """The chain in which sources are masked, and the names of the reductions that then need no mask
    of their own. A source is masked where that spares the masks of two reductions or more."""
    unmasked: frozenset[str] = frozenset()
    domains = dict.fromkeys(frozenset(conjuncts(o.domain)) for o in chain.operators)
    for domain in domains:
        while domain and (mask := _best(chain, domain, unmasked)) is not None:
            chain = _applied(chain, mask, domain)
            unmasked |= set(mask.unmasked)
    return chain, unmasked


def _best(chain: Chain, domain: Domain, unmasked: frozenset[str]) -> _Mask | None:
    """The mask that spares the most reductions theirs, at the latest source; None where there is
    none. A source that is computed from a reduction which keeps a mask of this domain is left out,
    since the domain would be evaluated twice."""
    best: _Mask | None = None
    masked = {
        o.out for o in chain.operators
        if o.out not in unmasked and frozenset(conjuncts(o.domain)) == domain
    }  # fmt: skip
    for source in reversed(chain.operators):
        if masked & _ancestors(chain, source):
            continue
        readers = _readers(chain, source, domain, unmasked)
        if len([o for o in readers if o.reduce != "none"]) < 2:
            continue
        for number in (LOWEST, 0.0):
            mask = _mask(chain, source, number, domain, readers)
            if mask and (best is None or len(mask.unmasked) > len(best.unmasked)):
                best = mask
    return best


def _readers(
    chain: Chain, source: Operator, domain: Domain, unmasked: frozenset[str]
) -> tuple[Operator, ...]:
    """What reads the source, directly or through maps, in the order of the chain: reductions over
    the domain, and maps that nothing else reads. Empty where there is anything else."""
    needed = {a for condition in domain for a in axes(condition)}
    if not needed <= set(source.axes) or chain.tensor(source.out).dtype in DISCRETE:
        return ()
    readers, names = list[Operator](), {source.out}
    for o in chain.operators:
        every = [r for r in o.reads if r.tensor in names]
        conditions = [r for r in reads(o.domain) if r.tensor in names] if o.domain else []
        if not every and not conditions:
            continue
        plain = all(r == read(r.tensor, *chain.operator(r.tensor).axes) for r in every)
        if conditions or not plain or chain.tensor(o.out).dtype in DISCRETE:
            return ()
        readers.append(o)
        if o.reduce == "none":
            if o.domain is not None or o.out in chain.outputs:
                return ()
            names.add(o.out)
        elif o.out in unmasked or frozenset(conjuncts(o.domain)) != domain or not o.axes:
            return ()
    return tuple(readers)


def _ancestors(chain: Chain, o: Operator) -> set[str]:
    """An operator and all that it needs."""
    ancestors = {o.out}
    for other in reversed(chain.operators):
        if other.out in ancestors:
            ancestors |= {r.tensor for r in sources(other)}
    return ancestors


@dataclass(slots=True)
class _Outside:
    """Ranges outside the domain: of the masked source and of what is computed from it. A maximum
    may have met nothing; all else is finite (docs/chains.md)."""

    chain: Chain
    domain: Domain
    ranges: dict[str, ValueRange]

    def read(self, r: Read) -> ValueRange:
        if r.tensor in self.ranges or r.tensor in self.chain.inputs:
            return self.ranges.get(r.tensor, FINITE)
        o = self.chain.operator(r.tensor)
        if o.reduce == "max":
            return ValueRange(LOWEST, ORDINARY)
        met = o.reduce == "none" and any(map(self._maximum, reads(through_maps(self.chain, r))))
        return value(o.body, self) if met else FINITE

    def _maximum(self, r: Read) -> bool:
        known = r.tensor not in self.chain.inputs
        return known and self.chain.operator(r.tensor).reduce == "max"

    def false(self, condition: Expr) -> bool:
        return self.domain <= set(conjuncts(condition))


def _mask(
    chain: Chain, source: Operator, number: float, domain: Domain, readers: tuple[Operator, ...]
) -> _Mask | None:
    """The mask at the source, where every reduction that reads it is left with its identity."""
    facts = _Outside(chain, domain, {source.out: ValueRange(number, number)})
    bodies: dict[str, Expr] = {}
    guards: dict[Read, Expr] = {}
    rounded: list[str] = []
    for o in readers:
        bodies[o.out], range_ = _body(o, guards, facts)
        if o.reduce == "none":
            facts.ranges[o.out] = range_
        elif o.reduce == "sum" and range_ == ZERO:
            facts.ranges[o.out] = FINITE
        elif o.reduce == "max" and range_ != ANY and range_.high <= -ORDINARY:
            own = read(o.out, *o.axes)
            guards[own] = nothing_met(own, range_.high)
            facts.ranges[o.out] = ValueRange(LOWEST, ORDINARY)
            rounded += [o.out] if range_.high > LOWEST else []
        else:
            return None
    needed = rounded or any(bodies[o.out] != o.body for o in readers)
    tops = [o for o in readers if o.reduce == "max"]
    if needed and not all(unbiased(chain, o.body, o.over) for o in tops):
        return None  # a row may hold the lowest number and not be empty
    if not all(_guarded(chain, name, bodies) for name in rounded):
        return None  # something else would see that it is not quite the lowest number
    if not _in_order(chain, domain, readers[0]):
        return None
    return _Mask(source, number, bodies, tuple(o.out for o in readers if o.reduce != "none"))


def _body(o: Operator, guards: Mapping[Read, Expr], facts: _Outside) -> tuple[Expr, ValueRange]:
    """An operator's body and its range, with 0 for maxima that met nothing if that tells more."""
    body, range_ = o.body, value(o.body, facts)
    for top, guard in guards.items():
        body = replaced(body, top, guard)
    guarded = value(body, facts) if body != o.body else range_
    return (body, guarded) if guarded != range_ else (o.body, range_)


def nothing_met(top: Read, least: float) -> Expr:
    """A maximum, and 0 where it has met nothing but a number that is at most `least`."""
    limit = 0.5 * max(LOWEST, least)  # rounded products, too
    return Call("select", (Call("le", (top, Const(limit))), Const(0.0), top))


def _guarded(chain: Chain, name: str, bodies: Mapping[str, Expr]) -> bool:
    """All that reads a maximum reads 0 where that has met nothing, or an exponential in which it is
    as good as any other low number."""
    own = read(name, *chain.operator(name).axes)
    if name in chain.outputs:
        return False
    for o in chain.readers(name):
        inside = own in reads(o.domain) if o.domain is not None else False
        unseen = own not in reads(saturated(o.body, own))
        if inside or (bodies.get(o.out, o.body) == o.body and not unseen):
            return False
    return True


def _in_order(chain: Chain, domain: Domain, first: Operator) -> bool:
    """What the domain reads is computed before the first reader of the source."""
    before = chain.operators[: chain.operators.index(first)]
    known = {*chain.inputs, *(o.out for o in before)}
    return all(r.tensor in known for condition in domain for r in reads(condition))


def _applied(chain: Chain, mask: _Mask, domain: Domain) -> Chain:
    source = mask.source
    name = fresh(chain, source.out + INSIDE)
    own = read(source.out, *source.axes)
    written = next(o.domain for o in chain.operators if frozenset(conjuncts(o.domain)) == domain)
    assert written is not None
    inside = Operator(name, source.axes, Call("select", (written, own, Const(mask.number))))
    operators: list[Operator] = []
    for o in chain.operators:
        if o.out in mask.bodies:
            if inside not in operators:
                operators.append(inside)
            body = replaced(mask.bodies[o.out], own, read(name, *source.axes))
            o = replace(o, body=body)
        operators.append(o)
    dtype = "float64" if chain.tensor(source.out).dtype == "float64" else "float32"
    tensors = (*chain.tensors, Tensor(name, chain.tensor(source.out).shape, dtype))
    return replace(chain, operators=tuple(operators), tensors=tensors)
