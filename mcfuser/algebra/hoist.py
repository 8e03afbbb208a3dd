"""Hoisting: what does not vary along the summed axis leaves the sum.

`sum[n] P[m,n] / Z[m] * V[n,h]` becomes `(sum[n] P[m,n] * V[n,h]) / Z[m]`, so the sum no longer
needs Z while it runs (Blockbuster's rules for scales past a product).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mcfuser.algebra.dependence import dependences
from mcfuser.chain import Chain, Operator, Tensor, sources
from mcfuser.expr import Call, Cast, Const, Expr, Read, axes, read, reads

Wrap = Callable[[Expr], Expr]


@dataclass(frozen=True, slots=True)
class _Factored:
    """A summand: what stays under the sum, what is applied to the sum afterwards, and the maps
    that compute what is left of those that were taken apart."""

    inner: Expr
    outer: tuple[Wrap, ...] = ()
    maps: tuple[Operator, ...] = ()
    tensors: tuple[Tensor, ...] = ()


def hoist(chain: Chain) -> Chain:
    """The chain with factors moved past every sum that depends on another reduction for them.

    Exact over the reals. A chain with nothing to move comes back as it is.
    """
    for operator in chain.operators:
        needs = any(d.target == operator.out for d in dependences(chain))
        if operator.reduce != "sum" or not needs or operator.domain is not None:
            continue
        factored = _factor(operator.body, operator.over, chain)
        if factored.outer:
            chain = _without_dead(_split(chain, operator, factored))
    return chain


def _factor(e: Expr, over: Sequence[str], chain: Chain) -> _Factored:
    if isinstance(e, Cast):
        inside = _factor(e.arg, over, chain)
        return replace(inside, inner=Cast(inside.inner, e.dtype))
    if isinstance(e, Read) and e.tensor not in chain.inputs:
        return _factor_map(e, over, chain)
    if isinstance(e, Call):
        return _factor_call(e, over, chain)
    return _Factored(e)


def _factor_map(e: Read, over: Sequence[str], chain: Chain) -> _Factored:
    """Factors of the map that is read; what stays of it is a map again, so products stay so."""
    source = chain.operator(e.tensor)
    if source.reduce != "none" or source.domain is not None or e != read(e.tensor, *source.axes):
        return _Factored(e)
    inside = _factor(source.body, over, chain)
    if not inside.outer:
        return _Factored(e)
    bare = inside.inner
    while isinstance(bare, Cast):
        bare = bare.arg
    if isinstance(bare, Read):
        return inside
    name = _fresh(source.out + "_part", chain)
    rest = Operator(name, source.axes, inside.inner)
    stored = Tensor(name, source.axes, chain.tensor(source.out).dtype)
    return _Factored(
        read(name, *source.axes), inside.outer, (*inside.maps, rest), (*inside.tensors, stored)
    )


def _fresh(name: str, chain: Chain) -> str:
    taken = {t.name for t in chain.tensors}
    while name in taken:
        name += "_"
    return name


def _factor_call(e: Call, over: Sequence[str], chain: Chain) -> _Factored:
    if e.op == "mul":
        for left, right in (e.args, e.args[::-1]):
            if _moves(left, over, chain):
                inside = _factor(right, over, chain)
                return replace(inside, outer=(*inside.outer, _times(left)))
        one, two = (_factor(a, over, chain) for a in e.args)
        both = Call("mul", (one.inner, two.inner))
        return _Factored(
            both, one.outer + two.outer, one.maps + two.maps, one.tensors + two.tensors
        )
    if e.op == "div" and _moves(e.args[1], over, chain):
        inside = _factor(e.args[0], over, chain)
        return replace(inside, outer=(*inside.outer, _over(e.args[1])))
    if e.op == "select" and _moves(e.args[0], over, chain):
        condition, first, second = e.args
        if Const(0.0) in (first, second):
            empty = first == Const(0.0)
            inside = _factor(second if empty else first, over, chain)
            return replace(inside, outer=(*inside.outer, _where(condition, empty)))
    return _Factored(e)


def _moves(e: Expr, over: Sequence[str], chain: Chain) -> bool:
    """It does not vary along the summed axes, and waits for a reduction over one of them."""
    return not set(axes(e)) & set(over) and any(
        r.tensor not in chain.inputs and set(chain.operator(r.tensor).over) & set(over)
        for r in reads(e)
    )


def _times(factor: Expr) -> Wrap:
    return lambda e: Call("mul", (e, factor))


def _over(divisor: Expr) -> Wrap:
    return lambda e: Call("div", (e, divisor))


def _where(condition: Expr, zero_first: bool) -> Wrap:
    if zero_first:
        return lambda e: Call("select", (condition, Const(0.0), e))
    return lambda e: Call("select", (condition, e, Const(0.0)))


def _split(chain: Chain, operator: Operator, factored: _Factored) -> Chain:
    """The sum under a new name, and a map that applies what was moved out of it."""
    name = _fresh(operator.out + "_sum", chain)
    result: Expr = read(name, *operator.axes)
    for wrap in factored.outer:
        result = wrap(result)
    inner = replace(operator, out=name, body=factored.inner)
    after = Operator(operator.out, operator.axes, result)
    operators: list[Operator] = []
    for o in chain.operators:
        operators += [*factored.maps, inner, after] if o is operator else [o]
    new = (*factored.tensors, Tensor(name, operator.axes))
    tensors = chain.tensors + new
    return replace(chain, operators=tuple(operators), tensors=tensors)


def _without_dead(chain: Chain) -> Chain:
    """The chain without maps that nothing reads any more."""
    used = {r.tensor for o in chain.operators for r in sources(o)} | set(chain.outputs)
    dead = {o.out for o in chain.operators if o.out not in used}
    if not dead:
        return chain
    operators = tuple(o for o in chain.operators if o.out not in dead)
    tensors = tuple(t for t in chain.tensors if t.name not in dead)
    return _without_dead(replace(chain, operators=operators, tensors=tensors))
