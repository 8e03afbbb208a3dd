"""Linear forms: an expression as a sum of atoms times numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcfuser.expr import Call, Cast, Const, Expr

Linear = dict[Expr, float]
"""Coefficients of atoms; the constant part is that of `ONE`."""

ONE = Const(1.0)
NOTHING = 1e-12
"""A coefficient that cancelled: what is left of it is the rounding of its constants."""


def linear(e: Expr) -> Linear:
    """The expression by its atoms; what is not linear in anything else is an atom itself.

    Casts to float32 and float64 are looked through: they round nothing that is stored narrower.
    """
    if isinstance(e, Const):
        return {ONE: float(e.value)}
    if isinstance(e, Cast) and e.dtype in ("float32", "float64"):
        return linear(e.arg)
    if isinstance(e, Call) and e.op in ("add", "sub"):
        return added(linear(e.args[0]), linear(e.args[1]), 1.0 if e.op == "add" else -1.0)
    if isinstance(e, Call) and e.op == "neg":
        return scaled(linear(e.args[0]), -1.0)
    if isinstance(e, Call) and e.op in ("mul", "div"):
        left, right = (linear(a) for a in e.args)
        if right.keys() <= {ONE} and (factor := right.get(ONE, 0.0)) != 0.0:
            return scaled(left, factor if e.op == "mul" else 1.0 / factor)
        if e.op == "mul" and left.keys() <= {ONE}:
            return scaled(right, left.get(ONE, 0.0))
    return {e: 1.0}


def added(one: Mapping[Expr, float], two: Mapping[Expr, float], factor: float = 1.0) -> Linear:
    """one + factor * two, without what cancels."""
    total = dict(one)
    for atom, c in two.items():
        total[atom] = total.get(atom, 0.0) + factor * c
        if abs(total[atom]) <= NOTHING * abs(c * factor):
            del total[atom]
    return total


def scaled(form: Mapping[Expr, float], factor: float) -> Linear:
    return {atom: c * factor for atom, c in form.items()}


def written(form: Mapping[Expr, float]) -> Expr:
    """The expression that a linear form says, positive parts first."""
    result: Expr | None = None
    for atom, c in sorted(form.items(), key=lambda part: part[1] < 0):
        size = abs(c) if result is not None else c
        part = _times(atom, size)
        result = part if result is None else Call("sub" if c < 0 else "add", (result, part))
    return result if result is not None else Const(0.0)


def signed(parts: Sequence[tuple[bool, Expr]]) -> Expr:
    """The sum of some parts, each with whether it is taken away."""
    minus, result = parts[0]
    if minus:
        result = Call("neg", (result,))
    for minus, part in parts[1:]:
        result = Call("sub" if minus else "add", (result, part))
    return result


def _times(atom: Expr, c: float) -> Expr:
    if atom == ONE:
        return Const(c)
    if c == 1.0:
        return atom
    return Call("neg", (atom,)) if c == -1.0 else Call("mul", (atom, Const(c)))
