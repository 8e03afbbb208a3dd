"""A summand multiplied out into terms, each divided in two: a factor that stays under the sum, and
operations that are applied to the sum because they need another reduction over the same axes and
do not vary along them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from mcfuser.algebra import quotient
from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.linear import signed
from mcfuser.algebra.pivot import is_centred, pivot
from mcfuser.chain import Chain, Operator, Tensor, fresh
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Index, Read, axes, read, reads, rewrite

Wrap = Callable[[Expr], Expr]
ONE = Const(1.0)
ZERO = Const(0.0)


@dataclass(frozen=True, slots=True)
class Term:
    """One term: `inner` stays under the sum (`ONE` where nothing does), and the operations `outer`
    are applied to the sum, in order.

    Where a term divides the body of a map, its part under the sum becomes a map again, so that a
    matrix product keeps plain operands; `maps` are the operators and tensors that this adds.
    """

    inner: Expr
    outer: tuple[Wrap, ...] = ()
    maps: tuple[tuple[Operator, Tensor], ...] = ()


@dataclass(frozen=True)
class Summand:
    """A sum whose body is divided into terms: the chain, and the operator that sums.

    With `shifts` a body that adds values is multiplied out. Without, an addition that needs another
    reduction stays one term, as does whatever else cannot be divided.
    """

    chain: Chain
    operator: Operator
    shifts: bool

    @property
    def over(self) -> tuple[str, ...]:
        return self.operator.over

    @property
    def known(self) -> tuple[Operator, ...]:
        """The operators that stand before the sum."""
        return self.chain.operators[: self.chain.operators.index(self.operator)]

    def waits(self, e: Expr) -> bool:
        """The expression reads, directly or through maps, a reduction over one of the summed
        axes."""
        tensors = (r.tensor for r in reads(through_maps(self.chain, e)))
        return any(
            t not in self.chain.inputs and set(self.chain.operator(t).over) & set(self.over)
            for t in tensors
        )

    def varies(self, e: Expr) -> bool:
        return bool(set(axes(e)) & set(self.over))

    def moves(self, e: Expr) -> bool:
        return not self.varies(e) and self.waits(e)


def terms(at: Summand, e: Expr) -> tuple[Term, ...]:
    """The terms whose sum is `e`."""
    if not at.waits(e):
        return (Term(e),)
    if at.moves(e):
        return (Term(ONE, (_times(e),)),)
    if isinstance(e, Cast) and e.dtype not in DISCRETE:
        inside = terms(at, e.arg)
        if e.dtype == "float16" and not all(_narrow(at, t) for t in inside):
            return (Term(e),)  # without what left it, it may not fit
        return tuple(
            t if t.inner == ONE else replace(t, inner=Cast(t.inner, e.dtype)) for t in inside
        )
    if isinstance(e, Read):
        return _of_map(at, e)
    if isinstance(e, Call):
        return _of_call(at, e)
    return (Term(e),)


def _narrow(at: Summand, t: Term) -> bool:
    """A float16 has room for what stays of a term: sums and products of halves, as they are likely
    to be, and exponentials of what is below a maximum, which are at most one."""
    new = {o.out: o.body for o, _ in t.maps}

    def written(x: Read | Index) -> Expr:
        return new.get(x.tensor, x) if isinstance(x, Read) else x

    return _fits_half(at.chain, through_maps(at.chain, rewrite(t.inner, written)))


def _fits_half(chain: Chain, e: Expr) -> bool:
    if isinstance(e, Cast):
        return e.dtype == "float16" or _fits_half(chain, e.arg)
    if isinstance(e, Read):
        return chain.tensor(e.tensor).dtype == "float16"
    if isinstance(e, Const):
        return abs(e.value) <= 1
    if isinstance(e, Index):
        return False
    if not isinstance(e, Call):
        assert_never(e)
    if e.op in ("tanh", "erf"):
        return True
    if e.op in ("exp", "exp2"):
        tensors = (r.tensor for r in reads(e) if r.tensor not in chain.inputs)
        return any(chain.operator(t).reduce == "max" for t in tensors)
    values = e.args[1:] if e.op == "select" else e.args
    some = ("add", "sub", "mul", "select", "max", "min", "neg", "abs")
    return e.op in some and all(_fits_half(chain, a) for a in values)


def _of_map(at: Summand, e: Read) -> tuple[Term, ...]:
    """The terms of the map that is read, each read back at the same place."""
    source = at.chain.operator(e.tensor)
    if source.reduce != "none" or source.domain is not None or e != read(e.tensor, *source.axes):
        return (Term(e),)
    if at.chain.tensor(source.out).dtype in DISCRETE:
        return (Term(e),)
    inside = terms(at, source.body)
    if not any(t.outer for t in inside):
        return (Term(e),)
    return tuple(as_map(at, t, source.out, i) for i, t in enumerate(inside))


def as_map(at: Summand, t: Term, stem: str, number: int = 0) -> Term:
    """The term with what stays of it computed by a map: one that the chain has, or a new one."""
    uncast = t.inner
    while isinstance(uncast, Cast):
        uncast = uncast.arg
    if isinstance(uncast, (Read, Const)):
        return t
    related = at.chain.operator(stem).related
    kept = tuple(a for a in related if a in axes(t.inner))
    dtype = at.chain.tensor(stem).dtype
    for o in at.known:
        if (o.reduce, o.axes, o.body, o.domain) == ("none", kept, t.inner, None):
            return replace(t, inner=read(o.out, *o.axes))
    name = fresh(at.chain, f"{stem}_part{number or ''}")
    new = Operator(name, kept, t.inner), Tensor(name, kept, dtype)
    return Term(read(name, *kept), t.outer, (*t.maps, new))


def _of_call(at: Summand, e: Call) -> tuple[Term, ...]:
    if e.op == "mul" or (e.op == "pow" and e.args[1] == Const(2.0)):
        one, two = (terms(at, a) for a in (e.args if e.op == "mul" else (e.args[0],) * 2))
        return tuple(
            Term(_product(a.inner, b.inner), a.outer + b.outer, a.maps + b.maps)
            for a in one
            for b in two
        )
    if e.op == "div":
        return _of_quotient(at, e, e.args[0], e.args[1], lambda b: lambda a: Call("div", (a, b)))
    if (divided := quotient.parts(e)) is not None:
        return _of_quotient(at, e, *divided, lambda b: lambda a: quotient.quotient(a, b))
    if e.op == "select":
        return _of_select(at, e)
    if e.op in ("add", "sub", "neg") and at.shifts:
        return _of_sum(at, e)
    return (Term(e),)


def _product(a: Expr, b: Expr) -> Expr:
    if ONE in (a, b):
        return b if a == ONE else a
    return Call("mul", (a, b))


def _of_quotient(
    at: Summand, e: Expr, a: Expr, b: Expr, over: Callable[[Expr], Wrap]
) -> tuple[Term, ...]:  # fmt: skip
    if not at.varies(b):
        inside = terms(at, a)
        if at.waits(b) or any(t.outer for t in inside):
            return tuple(replace(t, outer=(*t.outer, over(b))) for t in inside)
        return (Term(e),)
    (below, *more) = terms(at, b)
    if more or below.maps or (at.waits(b) and not below.outer):
        return (Term(e),)
    outer = tuple(_inverse(w) for w in below.outer)
    return tuple(
        replace(t, inner=Call("div", (t.inner, below.inner)), outer=t.outer + outer)
        for t in terms(at, a)
    )


def _inverse(w: Wrap) -> Wrap:
    return lambda e: Call("div", (e, w(ONE)))


def _of_select(at: Summand, e: Call) -> tuple[Term, ...]:
    condition, first, second = e.args
    if at.moves(condition) and ZERO in (first, second):
        empty = first == ZERO
        inside = terms(at, second if empty else first)
        return tuple(replace(t, outer=(*t.outer, _where(condition, empty))) for t in inside)
    if at.waits(condition) or not (at.shifts or ZERO in (first, second)):
        return (Term(e),)
    then, other = terms(at, first), terms(at, second)
    if not all(_bounded(at, t) for t in (*then, *other)):
        return (Term(e),)  # zero times what the other branch would be is no number
    one = [replace(t, inner=Call("select", (condition, t.inner, ZERO))) for t in then]
    two = [replace(t, inner=Call("select", (condition, ZERO, t.inner))) for t in other]
    if first == ZERO or second == ZERO:
        return tuple(two if first == ZERO else one)
    return (*one, *two)


def _bounded(at: Summand, t: Term) -> bool:
    """What is applied to the sum is finite, masks or not."""
    applied: Expr = ONE
    for wrap in t.outer:
        applied = wrap(applied)
    return quotient.bounded(at.chain, applied)


def _of_sum(at: Summand, e: Expr) -> tuple[Term, ...]:
    """A sum of what varies (`a`), what moves (`u`), and of products of both. Where a is not small
    against its offset, a + u is (a - p) + (u + p): no digits are lost, whatever the offset."""
    parts = list(added_parts(e, False))
    free = [x for x in parts if not at.waits(x[1]) and at.varies(x[1])]
    moving = [x for x in parts if not at.varies(x[1])]
    mixed = [x for x in parts if at.waits(x[1]) and at.varies(x[1])]
    terms_: list[Term] = []
    if free and moving:
        a, u = _joined(free), _joined(moving)
        data = bool(reads(through_maps(at.chain, a)))  # positions are not far from zero
        if data and not is_centred(at.chain, a, at.over):
            p = pivot(at.chain, a, at.over)
            if p is None:
                return (Term(e),)
            a, u = Call("sub", (a, p)), Call("add", (u, p))
        terms_ = [Term(a), Term(ONE, (_times(u),))]
    elif free or moving:
        alone = _joined(free or moving)
        terms_ = [Term(alone) if free else Term(ONE, (_times(alone),))]
    for minus, part in mixed:
        inside = terms(at, part)
        terms_ += [replace(t, outer=(*t.outer, _negated)) for t in inside] if minus else inside
    return tuple(terms_)


def added_parts(e: Expr, minus: bool) -> list[tuple[bool, Expr]]:
    """The parts of sums and differences, with their signs."""
    if isinstance(e, Call) and e.op in ("add", "sub"):
        return added_parts(e.args[0], minus) + added_parts(e.args[1], minus != (e.op == "sub"))
    if isinstance(e, Call) and e.op == "neg":
        return added_parts(e.args[0], not minus)
    return [(minus, e)]


def _joined(parts: Sequence[tuple[bool, Expr]]) -> Expr:
    return signed(sorted(parts, key=lambda part: part[0]))


def _negated(e: Expr) -> Expr:
    return Call("neg", (e,))


def _times(factor: Expr) -> Wrap:
    return lambda e: factor if e == ONE else Call("mul", (e, factor))


def _where(condition: Expr, zero_first: bool) -> Wrap:
    if zero_first:
        return lambda e: Call("select", (condition, ZERO, e))
    return lambda e: Call("select", (condition, e, ZERO))
