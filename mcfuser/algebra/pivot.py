"""Pivots: a value and its mean are both taken from one of the values, so that nothing cancels.

`x - mean` with a mean far above the spread loses digits as soon as it is multiplied out, or as soon
as the mean is stored. With p = x at position 0 of the averaged axis, `x - p` is small, its sum is,
and `x - mean = (x - p) - sum(x - p) / K` over the reals. |mean - p| is at most sqrt(K) standard
deviations, and about one for most data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.linear import Linear, added, linear, scaled, written
from mcfuser.algebra.quotient import finite
from mcfuser.chain import Chain, Operator, Tensor, fresh
from mcfuser.expr import DISCRETE, Affine, Call, Cast, Expr, at, axes, read, reads, replaced

CLOSE = 1e-3
"""A difference is centred if what it keeps of the pivot is at most this much of it: a reciprocal of
the extent that was rounded to float32 leaves 1e-7."""


REPEATED = 4
"""Differences from one mean that are rewritten in an operator, at most: a difference that was
rewritten is not to be rewritten again, whatever form it then has."""


@dataclass(frozen=True, slots=True)
class _Mean:
    """A sum of constant multiples of what varies along `over`, by the form of its body."""

    operator: Operator
    form: Linear

    @property
    def over(self) -> tuple[str, ...]:
        return self.operator.over


def centred(chain: Chain, done: Sequence[tuple[str, str]] = ()) -> Chain:
    """The chain whose differences of values and their means are taken from a pivot: of an operator
    and a mean so many as are likely to be written, REPEATED; `done` are those that were.

    Exact over the reals. Only values that are inputs, or maps of inputs, have a pivot.
    """
    means = [m for o in chain.operators if (m := _mean(chain, o)) is not None]
    for mean in means:
        for o in chain.operators:
            pair = o.out, mean.operator.out
            difference = _difference(chain, o, mean) if done.count(pair) < REPEATED else None
            if difference is not None:
                return centred(_apart(chain, o, mean, *difference), (*done, pair))
    return chain


def pivot(chain: Chain, e: Expr, over: Sequence[str]) -> Expr | None:
    """The value at position 0 of some axes, or None where it has to be computed first, or where
    it is no data: positions need no pivot, and infinities have none."""
    whole = through_maps(chain, e)
    found = reads(whole)
    if not found or any(r.tensor not in chain.inputs for r in found) or not finite(chain, whole):
        return None
    return at(whole, {a: Affine(()) for a in over})


def is_centred(chain: Chain, e: Expr, over: Sequence[str]) -> bool:
    """It is a linear form that vanishes at position 0 of the axes."""
    zero: Mapping[str, Affine] = {a: Affine(()) for a in over}
    total: Linear = {}
    for atom, c in linear(through_maps(chain, e)).items():
        total = added(total, {at(atom, zero): c})
    return not total


def pivots(chain: Chain) -> tuple[str, ...]:
    """Inputs of which an operator reads one position of some dimension."""
    found = dict.fromkeys(
        r.tensor
        for o in chain.operators
        for r in o.reads
        if r.tensor in chain.inputs and any(not i.terms for i in r.indices)
    )
    return tuple(found)


def _varies(e: Expr, over: Sequence[str]) -> bool:
    return bool(set(axes(e)) & set(over))


def _mean(chain: Chain, o: Operator) -> _Mean | None:
    if o.reduce != "sum" or o.domain is not None or chain.tensor(o.out).dtype in DISCRETE:
        return None
    if not all(isinstance(chain.extent(a), int) for a in o.over):
        return None
    if all(chain.size(a) == 1 for a in o.over):
        return None
    form = linear(o.body)
    varying = [a for a in form if _varies(a, o.over)]
    fine = varying and all(pivot(chain, a, o.over) is not None for a in varying)
    products = any(isinstance(a, Call) and a.op == "mul" for a in varying)
    if not fine or products or is_centred(chain, o.body, o.over):
        return None
    return _Mean(o, form)


def _difference(chain: Chain, o: Operator, mean: _Mean) -> tuple[Expr, Linear, float] | None:
    """A subterm of the operator's body that subtracts the mean of what varies in it: the term, the
    form of the rest, and the mean's coefficient."""
    if not set(mean.over) <= set(o.related) or o is mean.operator:
        return None
    for e in _sums(o.body):
        form: Linear = {}
        for atom, c in linear(e).items():
            inner = {atom: 1.0} if _varies(atom, mean.over) else linear(through_maps(chain, atom))
            form = added(form, inner, c)
        alpha = form.pop(read(mean.operator.out, *mean.operator.axes), 0.0)
        left = added(form, mean.form, alpha * _count(chain, mean))
        varying = [a for a in form if _varies(a, mean.over)]
        kept = any(abs(left.get(a, 0.0)) > CLOSE * abs(form[a]) for a in varying)
        if alpha and varying and not kept:
            return e, form, alpha
    return None


def _sums(e: Expr) -> list[Expr]:
    """The largest sums and differences within an expression."""
    if isinstance(e, Call) and e.op in ("add", "sub"):
        return [e]
    inner = e.args if isinstance(e, Call) else (e.arg,) if isinstance(e, Cast) else ()
    return [found for a in inner for found in _sums(a)]


def _count(chain: Chain, mean: _Mean) -> int:
    total = 1
    for a in mean.over:
        total *= chain.size(a)
    return total


def _apart(
    chain: Chain, o: Operator, mean: _Mean, e: Expr, form: Linear, alpha: float
) -> Chain:  # fmt: skip
    """The chain in which `e` = form + alpha * mean is computed from values less their pivots."""
    m, count = mean.operator, _count(chain, mean)
    shifts = _shifts(chain, mean)
    first = next(iter(shifts))
    unit = mean.form[first]
    body: Linear = {read(s.out, *s.axes): mean.form[a] / unit for a, s in shifts.items()}
    total = Operator(fresh(chain, m.out + "_shift"), m.axes, written(body), "sum", m.over)
    result: Linear = {read(total.out, *m.axes): alpha * unit}
    for a, c in added(form, scaled(mean.form, alpha * count)).items():
        p = pivot(chain, a, m.over) if a in shifts else a
        assert p is not None
        result = added(result, {p: c})
    for a, c in form.items():
        if a in shifts:
            result = added({read(shifts[a].out, *shifts[a].axes): c}, result)
    operators: list[Operator] = []
    for other in chain.operators:
        if other is m:
            known = {x.out for x in chain.operators}
            operators += [s for s in shifts.values() if s.out not in known] + [m, total]
        elif other is o:
            operators.append(replace(o, body=replaced(o.body, e, written(result))))
        else:
            operators.append(other)
    new = {x.out: x for x in (*shifts.values(), total)}
    known = {t.name for t in chain.tensors}
    tensors = tuple(Tensor(x.out, x.axes) for x in new.values() if x.out not in known)
    return replace(chain, operators=tuple(operators), tensors=chain.tensors + tensors)


def _shifts(chain: Chain, mean: _Mean) -> dict[Expr, Operator]:
    """By what varies in a mean, the map that takes the pivot from it."""
    found: dict[Expr, Operator] = {}
    for atom in mean.form:
        if _varies(atom, mean.over):
            o = found[atom] = _shift(chain, atom, mean)
            if o not in chain.operators:  # the next one takes another name
                more = (*chain.tensors, Tensor(o.out, o.axes))
                before = chain.operators.index(mean.operator)
                operators = (*chain.operators[:before], o, *chain.operators[before:])
                chain = replace(chain, tensors=more, operators=operators)
    return found


def _shift(chain: Chain, atom: Expr, mean: _Mean) -> Operator:
    """The map that takes the pivot from a value; the chain's own, where it has it already.

    A sum is taken apart before it is rounded: (x - x0) + (y - y0), not (x + y) - (x0 + y0).
    """
    zero = {a: Affine(()) for a in mean.over}
    whole = linear(through_maps(chain, atom))
    body = written({Call("sub", (x, at(x, zero))): c for x, c in whole.items() if x != at(x, zero)})
    related = mean.operator.related
    kept = tuple(a for a in related if a in axes(atom))
    for o in chain.operators:
        if o.reduce == "none" and o.domain is None and (o.axes, o.body) == (kept, body):
            return o
    stem = next(r.tensor for r in reads(atom))
    return Operator(fresh(chain, stem + "_shift"), kept, body)
