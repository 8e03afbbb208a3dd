"""Masks taken once: a softmax whose reductions share a domain, with the domain in its scores.

Where the scores hold the lowest number outside the domain, their maximum needs no mask, and
`exp2(score - max)` is zero there, so neither do the sums of it: one selection instead of three. In
a row that has met no position of the domain, the maximum is still the lowest number, of which the
difference is nothing; there 0 is subtracted instead, which leaves a weight of zero.

The same holds of lanes past an axis' end, which whoever writes kernels masks so (`softmaxes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.exponent import unbiased
from mcfuser.chain import LOWEST, Chain, Operator, Tensor, fresh
from mcfuser.expr import Call, Cast, Const, Expr, Read, axes, conjuncts, read, replaced, walk

INSIDE = "_inside"
"""The suffix of the scores that hold the lowest number outside the domain."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """A maximum's scores, the maps that are its exponentials, and the sums over these, of whatever
    axes: nothing else reads them, though the scores may be a result of the chain. The domain of all
    reductions is one, or none."""

    scores: Read
    weights: tuple[str, ...]
    sums: tuple[str, ...]


def softmaxes(chain: Chain) -> Mapping[str, Softmax]:
    """Those of a chain, by the maximum, in whose rows the lowest number would count for nothing:
    not where scores are infinite on purpose, and a row may hold nothing else."""
    every = ((o.out, _softmax(chain, o)) for o in chain.operators)
    return {n: one for n, one in every if one is not None and not _infinite(chain, one.scores)}


def masked_once(chain: Chain) -> tuple[Chain, frozenset[str]]:
    """The chain with such scores, and the reductions whose domain is in what they read."""
    settled: set[str] = set()
    for o in chain.operators:
        o = chain.operator(o.out)
        if o.domain is not None and (found := _softmax(chain, o)) is not None:
            chain = _masked(chain, o, found.scores, found.weights)
            settled |= {o.out, *found.sums}
    return chain, frozenset(settled)


def _softmax(chain: Chain, o: Operator) -> Softmax | None:
    if o.reduce != "max" or o.out in chain.outputs:
        return None
    scores = _scores(o.body)
    if scores is None or scores.tensor in chain.inputs:
        return None
    names = tuple(i.plain for i in scores.indices)
    own = chain.operator(scores.tensor).axes
    domain = set(axes(o.domain)) if o.domain is not None else set()
    if len(set(names)) < len(names) or names != own or not domain <= set(own):
        return None
    if not unbiased(chain, _bare(chain, scores, o), o.over):
        return None
    read_by = dict.fromkeys([*chain.readers(scores.tensor), *chain.readers(o.out)])
    weights = [r for r in read_by if r.out != o.out]
    top = read(o.out, *o.axes)
    wanted = [_exponential(o.body, t) for t in (top, _top(o, top))]
    if any(r.body not in wanted or r.domain is not None or r.reduce != "none" for r in weights):
        return None
    sums: list[str] = []
    for w in weights:
        over = chain.readers(w.out)
        if w.out in chain.outputs or not all(_vanishes(r, w, o) for r in over):
            return None
        sums += [r.out for r in over]
    return Softmax(scores, tuple(w.out for w in weights), tuple(sums)) if weights else None


def selected(e: Expr) -> tuple[Expr, Expr] | None:
    """A domain, and what the expression is inside it, where it is the lowest number outside."""
    if isinstance(e, Call) and e.op == "select" and e.args[2] == Const(LOWEST):
        return e.args[0], e.args[1]
    return None


def _bare(chain: Chain, scores: Read, o: Operator) -> Expr:
    """The scores as they were before the maximum's domain was put in them."""
    found = selected(chain.operator(scores.tensor).body)
    return found[1] if found is not None and found[0] == o.domain else scores


def _exponential(score: Expr, top: Expr) -> Expr:
    return Call("exp2", (Call("sub", (score, top)),))


def _infinite(chain: Chain, scores: Read) -> bool:
    """Infinity is written in the scores."""
    every = walk(through_maps(chain, scores))
    return any(isinstance(e, Const) and math.isinf(e.value) for e in every)


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


def _masked(chain: Chain, o: Operator, scores: Read, weights: Sequence[str]) -> Chain:
    source = chain.operator(scores.tensor)
    name = fresh(chain, source.out + INSIDE)
    assert o.domain is not None
    inside = Call("select", (o.domain, scores, Const(LOWEST)))
    top = _top(o, read(o.out, *o.axes))
    body = replaced(o.body, scores, Read(name, scores.indices))
    operators: list[Operator] = []
    for r in chain.operators:
        if r.out == o.out:
            operators.append(Operator(name, source.axes, inside))
            r = replace(r, body=body)
        elif r.out in weights:
            r = replace(r, body=_exponential(body, top))
        operators.append(r)
    shape = chain.tensor(source.out).shape
    tensors = (*chain.tensors, Tensor(name, shape, "float32"))
    return replace(chain, operators=tuple(operators), tensors=tensors)


def _top(o: Operator, own: Read) -> Expr:
    """The maximum, and 0 in a row that has met no position of the domain."""
    assert isinstance(o.body, Call) and isinstance(o.body.args[1], Const)
    factor = float(o.body.args[1].value)
    nothing = Call("le", (own, Const(0.5 * LOWEST * min(1.0, factor))))  # rounded products, too
    return Call("select", (nothing, Const(0.0), own))
