"""Whether a summand that was multiplied out is one that can be summed at once, and well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.terms import ONE, Summand, Term, added_parts
from mcfuser.chain import Operator
from mcfuser.expr import Call, Cast, Const, Expr, Read, reads


def summable(at: Summand, found: Sequence[Term]) -> bool:
    """No term waits any more, and none takes an offset from what is read off-centre elsewhere."""
    at = _with_maps(at, found)
    if any(at.waits(t.inner) for t in found):
        return False
    if len(found) == 1:
        return True
    raw = set().union(*(_raw(at, t.inner) for t in found))
    return not raw & set().union(*(_offsets(at, t) for t in found))


def _with_maps(at: Summand, found: Sequence[Term]) -> Summand:
    """The same sum in the chain that has the terms' maps."""
    new = dict.fromkeys(m for t in found for m in t.maps)
    operators = (*(o for o, _ in new), *at.chain.operators[len(at.known) :])
    tensors = (*at.chain.tensors, *(t for _, t in new))
    return replace(at, chain=replace(at.chain, operators=(*at.known, *operators), tensors=tensors))


def _raw(at: Summand, e: Expr) -> set[str]:
    """Inputs that the expression reads along the summed axes and not at a pivot as well."""
    found = reads(through_maps(at.chain, e))
    varying = {r.tensor for r in found if at.varies(r)}
    return varying - {r.tensor for r in found if any(not i.terms for i in r.indices)}


def _offsets(at: Summand, t: Term) -> set[str]:
    """Inputs whose offset is in what is applied afterwards: those it has a plain sum of."""
    applied: Expr = ONE
    for wrap in t.outer:
        applied = wrap(applied)
    found: set[str] = set()
    for r in reads(through_maps(at.chain, applied)):
        o: Operator | None = None if r.tensor in at.chain.inputs else at.chain.operator(r.tensor)
        if o is not None and o.reduce == "sum" and set(o.over) & set(at.over):
            body = through_maps(at.chain, o.body)
            linear = [p for _, p in added_parts(body, False) if isinstance(_scaled(p), Read)]
            found |= set().union(*(_raw(at, p) for p in linear)) & _raw(at, body)
    return found


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
