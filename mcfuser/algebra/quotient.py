"""Quotients by sums that may be empty.

A row whose domain is empty, or whose mask is minus infinity throughout, has weights and a sum of
zero. Its softmax is nothing, not 0 / 0: a quotient whose divisor reads a sum of the chain is 0
where its numerator is. Every other division is IEEE's.
"""

from __future__ import annotations

from dataclasses import replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.linear import linear
from mcfuser.chain import Chain
from mcfuser.expr import CONDITIONS, DISCRETE, Call, Cast, Const, Expr, Read, children, reads

ZERO = Const(0.0)
_BOUNDED = ("tanh", "erf", *CONDITIONS)
"""What is finite whatever its arguments are."""


def guarded(chain: Chain) -> Chain:
    """The chain whose quotients by sums are written `select(a == 0, 0, a / b)`.

    A divisor that cannot be zero (`1 + exp(x)`, the root of a sum of squares and a constant) needs
    no guard, nor does a quotient that the chain guards itself.
    """

    def done(e: Expr | None) -> Expr | None:
        return None if e is None else _guard(e, frozenset(), chain)

    operators = tuple(
        replace(o, body=_guard(o.body, frozenset(), chain), domain=done(o.domain))
        for o in chain.operators
    )
    return chain if operators == chain.operators else replace(chain, operators=operators)


def quotient(a: Expr, b: Expr) -> Expr:
    """a / b, and 0 where a is."""
    return Call("select", (Call("eq", (a, ZERO)), ZERO, Call("div", (a, b))))


def parts(e: Expr) -> tuple[Expr, Expr] | None:
    """Numerator and divisor of an expression that `quotient` wrote."""
    if isinstance(e, Call) and e.op == "select" and isinstance(e.args[2], Call):
        a, b = (*e.args[2].args, ZERO)[:2]
        if e == quotient(a, b):
            return a, b
    return None


def unguarded(e: Expr) -> Expr:
    """The expression with plain divisions where `quotient` wrote them."""
    guarded_parts = parts(e)
    if guarded_parts is not None:
        return Call("div", (unguarded(guarded_parts[0]), unguarded(guarded_parts[1])))
    if isinstance(e, Cast):
        return Cast(unguarded(e.arg), e.dtype)
    return Call(e.op, tuple(unguarded(a) for a in e.args)) if isinstance(e, Call) else e


def finite(chain: Chain, e: Expr) -> bool:
    """The value is finite where inputs and reductions are: nothing in it, maps written out, has a
    pole or overflows, and nothing divides but a quotient that is 0 where its numerator is."""

    def holds(x: Expr) -> bool:
        if (found := parts(x)) is not None:
            return all(holds(a) for a in found)
        if isinstance(x, Call) and x.op in ("div", "log", "pow", "exp", "exp2", "sqrt"):
            last, sign = x.args[-1], _sign(x.args[-1], chain)
            known = isinstance(last, Const) and last.value != 0
            divides = x.op == "div" and (known or sign == 2)
            return (divides or (x.op == "sqrt" and sign > 0)) and all(map(holds, x.args))
        return all(holds(a) for a in children(x))

    return holds(through_maps(chain, e))


def bounded(chain: Chain, e: Expr) -> bool:
    """The value is finite even where inputs are minus infinity, as masks are."""
    return finite(chain, e) and not _masked(chain, through_maps(chain, e))


def _masked(chain: Chain, e: Expr) -> bool:
    """An input that is minus infinity may make the value infinite: it is a term, a factor, or part
    of a reduction that is. What it divides is zero, and a maximum starts at the lowest number."""
    if isinstance(e, Cast):
        return e.dtype not in DISCRETE and _masked(chain, e.arg)
    if isinstance(e, Read):
        if chain.tensor(e.tensor).dtype in DISCRETE:
            return False
        if e.tensor in chain.inputs:
            return True
        o = chain.operator(e.tensor)
        infinite = _rises if o.reduce == "max" else _masked
        return infinite(chain, through_maps(chain, o.body))
    if not isinstance(e, Call) or e.op in _BOUNDED:
        return False
    if e.op in ("exp", "exp2"):
        return _rises(chain, e.args[0])
    values = {"div": e.args[:1], "select": e.args[1:]}.get(e.op, e.args)
    return any(_masked(chain, a) for a in values)


def _rises(chain: Chain, e: Expr) -> bool:
    """An input that is minus infinity may make the value plus infinity."""

    def rises(atom: Expr, factor: float) -> bool:
        if isinstance(atom, Read) and atom.tensor in chain.inputs:
            return factor < 0 and _masked(chain, atom)
        lowest = isinstance(atom, Read) and chain.operator(atom.tensor).reduce == "max"
        return not (lowest and factor < 0) and _masked(chain, atom)

    return any(rises(atom, factor) for atom, factor in linear(e).items())


def _guard(e: Expr, nonzero: frozenset[Expr], chain: Chain) -> Expr:
    """The expression guarded, where some subterms are known not to be zero."""
    if isinstance(e, Cast):
        return Cast(_guard(e.arg, nonzero, chain), e.dtype)
    if not isinstance(e, Call):
        return e
    if e.op == "select":
        condition, first, second = e.args
        then, other = _known(condition, "ne"), _known(condition, "eq")
        return Call("select", (
            _guard(condition, nonzero, chain),
            _guard(first, nonzero | then, chain), _guard(second, nonzero | other, chain),
        ))  # fmt: skip
    done = Call(e.op, tuple(_guard(a, nonzero, chain) for a in e.args))
    if e.op != "div" or set(e.args) & nonzero or not _may_vanish(e.args[1], chain):
        return done
    if isinstance(e.args[0], Const) and e.args[0].value != 0:
        return done
    return quotient(*done.args)


def _known(condition: Expr, op: str) -> frozenset[Expr]:
    """What `x op 0` compares with zero."""
    if isinstance(condition, Call) and condition.op == op:
        values = [a.value if isinstance(a, Const) else None for a in condition.args]
        if 0 in values:
            return frozenset(condition.args)
    return frozenset()


def _may_vanish(e: Expr, chain: Chain) -> bool:
    """It reads a sum of the chain, and nothing shows that it is above zero."""
    written = through_maps(chain, e)
    sums = [r for r in reads(written) if r.tensor not in chain.inputs]
    return any(chain.operator(r.tensor).reduce == "sum" for r in sums) and _sign(written, chain) < 2


def _sign(e: Expr, chain: Chain) -> int:
    """2 where the value is surely above zero, 1 where it is surely not below, else 0."""
    if isinstance(e, Const):
        return 2 if e.value > 0 else int(e.value == 0)
    if isinstance(e, Cast):  # a small value is zero in a narrower type
        return (
            _sign(e.arg, chain)
            if e.dtype in ("float32", "float64")
            else min(1, _sign(e.arg, chain))
        )
    if isinstance(e, Read) and e.tensor not in chain.inputs:
        o = chain.operator(e.tensor)
        return min(1, _sign(through_maps(chain, o.body), chain)) if o.reduce == "sum" else 0
    if not isinstance(e, Call):
        return 0
    signs = [_sign(a, chain) for a in e.args]
    if e.op in ("exp", "exp2", "abs"):
        return 1  # an exponential rounds to zero
    if e.op == "add":
        return max(signs) if min(signs) else 0
    if e.op in ("mul", "div"):
        return min(signs) if e.args[0] != e.args[1] else max(1, min(signs))
    if e.op == "max":
        return max(signs)
    if e.op == "pow" and e.args[1] == Const(2.0):
        return max(1, signs[0])
    return signs[0] if e.op == "sqrt" else 0
