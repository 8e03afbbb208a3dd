"""Masks taken once: a softmax whose reductions share a domain, with the domain in its scores.

Where the scores hold the lowest number outside the domain, their maximum needs no mask, and
`exp2(score - max)` is zero there, so neither do the sums of it: one selection instead of three. In
a row that has met no position of the domain, the maximum is still the lowest number, of which the
difference is nothing; there 0 is subtracted instead, which leaves a weight of zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcfuser.algebra.exponent import unbiased
from mcfuser.chain import LOWEST, Chain, Operator, Tensor, fresh
from mcfuser.expr import Call, Cast, Const, Expr, Read, axes, conjuncts, read, replaced

INSIDE = "_inside"
"""The suffix of the scores that hold the lowest number outside the domain."""


def masked_once(chain: Chain) -> tuple[Chain, frozenset[str]]:
    """The chain with such scores, and the reductions whose domain is in what they read."""
    settled: set[str] = set()
    for o in chain.operators:
        o = chain.operator(o.out)
        found = _softmax(chain, o)
        if found is not None:
            scores, weights, sums = found
            chain = _masked(chain, o, scores, weights)
            settled |= {o.out, *sums}
    return chain, frozenset(settled)


def _softmax(chain: Chain, o: Operator) -> tuple[Read, list[str], list[str]] | None:
    """The scores of which `o` is the maximum, the maps that are its exponentials, and the sums over
    these; None where something else needs them, or outside the domain."""
    if o.reduce != "max" or o.domain is None or o.out in chain.outputs:
        return None
    scores = _scores(o.body)
    if scores is None or scores.tensor in chain.inputs or scores.tensor in chain.outputs:
        return None
    names = tuple(i.plain for i in scores.indices)
    own = chain.operator(scores.tensor).axes
    if len(set(names)) < len(names) or names != own or not set(axes(o.domain)) <= set(own):
        return None
    if not unbiased(chain, scores, o.over):
        return None
    wanted = Call("exp2", (Call("sub", (o.body, read(o.out, *o.axes))),))
    read_by = dict.fromkeys([*chain.readers(scores.tensor), *chain.readers(o.out)])
    weights = [r for r in read_by if r.out != o.out]
    if any(r.body != wanted or r.domain is not None or r.reduce != "none" for r in weights):
        return None
    sums: list[str] = []
    for w in weights:
        over = chain.readers(w.out)
        if w.out in chain.outputs or not all(_vanishes(r, w, o) for r in over):
            return None
        sums += [r.out for r in over]
    return (scores, [w.out for w in weights], sums) if weights else None


def _scores(e: Expr) -> Read | None:
    """The read in `z * c'`."""
    if isinstance(e, Call) and e.op == "mul" and isinstance(e.args[0], Read):
        return e.args[0] if isinstance(e.args[1], Const) and e.args[1].value > 0 else None
    return None


def _vanishes(r: Operator, w: Operator, o: Operator) -> bool:
    """It sums over the maximum's domain, and what it sums is zero where the weight is."""
    same = r.reduce == "sum" and set(conjuncts(r.domain)) == set(conjuncts(o.domain))
    factors = list(_factors(r.body))
    others = [f.arg if isinstance(f, Cast) else f for f in factors if not _weight(f, w)]
    finite = all(isinstance(f, (Read, Const)) for f in others)  # nothing computed, as 0 * log(0) is
    return same and r.axes != () and len(others) < len(factors) and finite


def _factors(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Call) and e.op == "mul":
        for arg in e.args:
            yield from _factors(arg)
    else:
        yield e


def _weight(e: Expr, w: Operator) -> bool:
    bare = e.arg if isinstance(e, Cast) else e
    return bare == read(w.out, *w.axes)


def _masked(chain: Chain, o: Operator, scores: Read, weights: list[str]) -> Chain:
    source = chain.operator(scores.tensor)
    name = fresh(chain, source.out + INSIDE)
    assert o.domain is not None and isinstance(o.body, Call) and isinstance(o.body.args[1], Const)
    inside = Call("select", (o.domain, scores, Const(LOWEST)))
    factor = float(o.body.args[1].value)
    own = read(o.out, *o.axes)
    nothing = Call("le", (own, Const(0.5 * LOWEST * min(1.0, factor))))  # rounded products, too
    top = Call("select", (nothing, Const(0.0), own))

    body = replaced(o.body, scores, Read(name, scores.indices))
    operators: list[Operator] = []
    for r in chain.operators:
        if r.out == o.out:
            operators.append(Operator(name, source.axes, inside))
            r = replace(r, body=body)
        elif r.out in weights:
            r = replace(r, body=Call("exp2", (Call("sub", (body, top)),)))
        operators.append(r)
    shape = chain.tensor(source.out).shape
    tensors = (*chain.tensors, Tensor(name, shape, "float32"))
    return replace(chain, operators=tuple(operators), tensors=tensors)
