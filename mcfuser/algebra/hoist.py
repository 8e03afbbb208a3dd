"""Hoisting: what does not vary along the summed axis leaves the sum.

`sum[n] P[m,n] / Z[m] * V[n,h]` becomes `(sum[n] P[m,n] * V[n,h]) / Z[m]`, so the sum no longer
needs Z while it runs (Blockbuster's rule 4 for scales past a product). A shift costs a sum of what
it was multiplied with (rule 5): `sum[k] (x - u) * W` becomes `sum[k] x * W - u * sum[k] W`, and
`sum (x - u)^2` becomes `sum x^2 - 2 u sum x + K u^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcfuser.algebra.dependence import dependences, through_maps
from mcfuser.algebra.linear import NOTHING
from mcfuser.algebra.pivot import centred, pivots
from mcfuser.algebra.quotient import bounded
from mcfuser.algebra.summable import summable
from mcfuser.algebra.terms import ONE, Summand, Term, as_map, terms
from mcfuser.chain import Chain, Operator, Tensor, fresh, without_dead
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Index, Read, axes, call, read


def hoist(chain: Chain, shifts: bool = True) -> Chain:
    """The chain with factors and shifts moved past every sum that depends on another reduction
    for them.

    Exact over the reals; a chain with nothing to move comes back as it is. Shifts are taken from a
    pivot (algebra.pivot), which keeps them well conditioned for data with any offset, but for a
    pivot that is itself sqrt(K) deviations out. So a program with shifts is measured on inputs
    (those `shifted` names) 1e4 deviations from zero; a candidate whose error there exceeds the
    tolerance is refused, and where all are, the space is built again with `shifts=False`: factors
    only, and the axis walked twice.
    """
    if shifts:
        moved, shifted = _hoisted(centred(chain), True)
        if shifted:
            return moved
    return _hoisted(chain, False)[0]


def shifted(chain: Chain) -> tuple[str, ...]:
    """The inputs whose offset hoisting takes out of a sum; none where it moves no shift."""
    moved = hoist(chain)
    if moved == hoist(chain, shifts=False):
        return ()
    before = pivots(chain)
    return tuple(name for name in pivots(moved) if name not in before)


def _hoisted(chain: Chain, shifts: bool) -> tuple[Chain, bool]:
    """The chain hoisted, and whether a shift was."""
    any_shift = False
    for name in [o.out for o in chain.operators]:
        if not any(o.out == name for o in chain.operators):
            continue  # nothing reads it since what did was rewritten
        o = chain.operator(name)
        needs = any(d.target == o.out for d in dependences(chain))
        steps = chain.tensor(o.out).dtype in DISCRETE
        if o.reduce != "sum" or not needs or steps or _waits_to_sum(chain, o):
            continue
        if shifts and (moved := _multiplied_out(chain, o)) is not None:
            chain, any_shift = without_dead(moved), True
            continue
        (factored,) = terms(Summand(chain, o, False), o.body)
        if factored.outer and factored.inner != ONE:
            chain = without_dead(_split(chain, o, factored))
    return chain, any_shift


def _waits_to_sum(chain: Chain, o: Operator) -> bool:
    """The domain itself needs another reduction over the summed axes."""
    return o.domain is not None and Summand(chain, o, False).waits(o.domain)


def _split(chain: Chain, o: Operator, factored: Term) -> Chain:
    """The sum under a new name, and a map that applies what was moved out of it. A sum over nothing
    is zero whatever that is: where it may be infinite, or no number, the map says so."""
    adding = _Adding(chain, o)
    total = adding.sum(factored, o.axes, o.over)
    result: Expr = total
    for wrap in factored.outer:
        result = wrap(result)
    if o.domain is not None and not bounded(adding.chain, result):
        result = Call("select", (Call("eq", (total, Const(0.0))), Const(0.0), result))
    return adding.done(result)


def _multiplied_out(chain: Chain, o: Operator) -> Chain | None:
    """The sum of a sum of terms as a map of sums that need no other one; None where a term still
    would, or where what is left to sum has no axis of its own."""
    at = Summand(chain, o, True)
    parts = terms(at, o.body)
    if o.domain is not None or not o.axes or (len(parts) == 1 and parts[0].inner != ONE):
        return None
    if not summable(at, parts):
        return None
    adding = _Adding(chain, o)
    total: dict[Expr, float] = {}
    for t in parts:
        scale, inner = _scale(t.inner)
        over = tuple(a for a in o.over if a in axes(inner))
        count, value = adding.count([a for a in o.over if a not in over])
        scale *= count
        if over:
            kept = tuple(a for a in o.axes if a in axes(inner)) or o.axes[:1]
            inner = adding.sum(replace(t, inner=inner), kept, over)
        value = _times(inner, value)
        for wrap in t.outer:
            value = wrap(value)
        factor, value = _scale(value)
        total[value] = total.get(value, 0.0) + factor * scale
    return adding.done(_written(total))


@dataclass
class _Adding:
    """The chain while one of its sums is replaced by others and a map of them."""

    chain: Chain
    operator: Operator

    def __post_init__(self) -> None:
        self.before: list[Operator] = list(Summand(self.chain, self.operator, False).known)
        self.first = len(self.before)

    def sum(self, t: Term, kept: tuple[str, ...], over: tuple[str, ...]) -> Read:
        """The sum of what stays of a term: one that the chain has, or a new one."""
        o = replace(self.operator, axes=kept, over=over)
        t = _productive(Summand(self.chain, self.operator, False), o, t)
        for new, tensor in t.maps:
            if new not in self.before:
                self._add(new, tensor)
        new_sum = replace(o, out=fresh(self.chain, o.out + "_sum"), body=t.inner)
        for known in self.before:
            if _equal(self.chain, known, new_sum):
                return read(known.out, *known.axes)
        self._add(new_sum, Tensor(new_sum.out, kept))
        return read(new_sum.out, *kept)

    def count(self, over: Sequence[str]) -> tuple[float, Expr]:
        """The positions of axes: a number, times a sum where extents are known at run time."""
        total, unknown = 1.0, []
        for a in over:
            if isinstance(self.chain.extent(a), int):
                total *= self.chain.size(a)
            else:
                unknown.append(a)
        if not unknown:
            return total, ONE
        inside: Expr = call("le", 0, Index(unknown[0]))
        for a in unknown[1:]:
            inside = Call("and", (inside, call("le", 0, Index(a))))
        name = fresh(self.chain, self.operator.out + "_count")
        kept = self.operator.axes[:1]
        self._add(Operator(name, kept, ONE, "sum", tuple(unknown), inside), Tensor(name, kept))
        return total, read(name, *kept)

    def _add(self, o: Operator, tensor: Tensor) -> None:
        after = self.chain.operators[len(self.before) :]
        self.before.append(o)
        self.chain = replace(
            self.chain, operators=(*self.before, *after), tensors=(*self.chain.tensors, tensor)
        )

    def done(self, result: Expr) -> Chain:
        """The chain in which the operator is the map that has this result."""
        o = self.operator
        after = Operator(o.out, o.axes, result)
        operators = (*self.before, after, *self.chain.operators[len(self.before) + 1 :])
        return replace(self.chain, operators=operators)


def _equal(chain: Chain, one: Operator, two: Operator) -> bool:
    def shape(o: Operator) -> object:
        return o.reduce, o.axes, o.over, o.domain

    return (
        shape(one) == shape(two)
        and chain.tensor(one.out).dtype == "float32"
        and through_maps(chain, one.body) == through_maps(chain, two.body)
    )


def _productive(at: Summand, o: Operator, t: Term) -> Term:
    """The term with an operand that is no read made a map, where that makes the sum a product."""
    if not isinstance(t.inner, Call) or t.inner.op != "mul" or replace(o, body=t.inner).product:
        return t
    sides = [as_map(at, Term(a), o.out, i) for i, a in enumerate(t.inner.args)]
    inner = Call("mul", tuple(s.inner for s in sides))
    maps = tuple(m for s in sides for m in s.maps)
    return Term(inner, t.outer, t.maps + maps) if replace(o, body=inner).product else t


def _scale(e: Expr) -> tuple[float, Expr]:
    """The constant factor of a product, and the rest."""
    if isinstance(e, Const):
        return float(e.value), ONE
    if isinstance(e, Cast) and e.dtype == "float32" and (inside := _scale(e.arg))[1] == ONE:
        return inside
    if not isinstance(e, Call) or e.op not in ("mul", "div", "neg"):
        return 1.0, e
    if e.op == "neg":
        scale, rest = _scale(e.args[0])
        return -scale, rest
    (one, a), (two, b) = (_scale(x) for x in e.args)
    if e.op == "div":
        return one / two, a if b == ONE else Call("div", (a, b))
    return one * two, _times(a, b)


def _times(a: Expr, b: Expr) -> Expr:
    return b if a == ONE else a if b == ONE else Call("mul", (a, b))


def _written(total: dict[Expr, float]) -> Expr:
    """The terms times their numbers, added."""
    parts = sorted(((e, c) for e, c in total.items() if abs(c) > NOTHING), key=lambda p: p[1] < 0)
    result: Expr | None = None
    for e, c in parts:
        size = c if result is None else abs(c)
        part = Const(size) if e == ONE else e if size == 1.0 else Call("mul", (e, Const(size)))
        result = part if result is None else Call("sub" if c < 0 else "add", (result, part))
    return result if result is not None else Const(0.0)
