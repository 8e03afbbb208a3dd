"""Whether a summand that was multiplied out can be summed in one loop without losing digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.terms import ONE, Summand, Term, added_parts
from mcfuser.chain import Operator
from mcfuser.expr import Call, Cast, Const, Expr, Read, reads


def summable(at: Summand, terms: Sequence[Term]) -> bool:
    """No term needs another reduction over the summed axes, and no term subtracts a sum of an input
    that another term reads without a pivot, whose offset would cost digits."""
    at = _with_maps(at, terms)
    if any(at.waits(t.inner) for t in terms):
        return False
    if len(terms) == 1:
        return True
    raw = set().union(*(_raw(at, t.inner) for t in terms))
    return not raw & set().union(*(_offsets(at, t) for t in terms))


def _with_maps(at: Summand, terms: Sequence[Term]) -> Summand:
    """The same sum in the chain to which the maps of the terms are added."""
    new = dict.fromkeys(m for t in terms for m in t.maps)
    operators = (*(o for o, _ in new), *at.chain.operators[len(at.known) :])
    tensors = (*at.chain.tensors, *(t for _, t in new))
    return replace(at, chain=replace(at.chain, operators=(*at.known, *operators), tensors=tensors))


def _raw(at: Summand, e: Expr) -> set[str]:
    """Inputs that an expression reads along the summed axes without reading a pivot of them too."""
    every = reads(through_maps(at.chain, e))
    varying = {r.tensor for r in every if at.varies(r)}
    return varying - {r.tensor for r in every if any(not i.terms for i in r.indices)}


def _offsets(at: Summand, t: Term) -> set[str]:
    """Inputs whose offset is part of the factors that are applied after the sum: inputs of which
    these factors contain a plain sum."""
    applied: Expr = ONE
    for wrap in t.outer:
        applied = wrap(applied)
    inputs: set[str] = set()
    for r in reads(through_maps(at.chain, applied)):
        o: Operator | None = None if r.tensor in at.chain.inputs else at.chain.operator(r.tensor)
        if o is not None and o.reduce == "sum" and set(o.over) & set(at.over):
            body = through_maps(at.chain, o.body)
            linear = [p for _, p in added_parts(body, False) if isinstance(_scaled(p), Read)]
            inputs |= set().union(*(_raw(at, p) for p in linear)) & _raw(at, body)
    return inputs


def _scaled(e: Expr) -> Expr:
    """The expression without casts and constant factors."""
    if isinstance(e, Cast):
        return _scaled(e.arg)
    if isinstance(e, Call) and e.op in ("mul", "div"):
        if isinstance(e.args[1], Const):
            return _scaled(e.args[0])
        if e.op == "mul" and isinstance(e.args[0], Const):
            return _scaled(e.args[1])
    return e
