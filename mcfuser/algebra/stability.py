"""Which repairs are right in floating point, not over the reals alone.

Between the first tile and the last, a target holds `g(r, c)` for a value of r that is not the final
one. Where that overflows, or rounds to zero, no repair restores the value. A target is therefore
rolled only where its intermediate values are bounded by its final one:

* `exp(k * (x - r) + rest)` for r the running maximum of that very x: the exponent of a step that is
  added is at most `rest` (at least, for k < 0), whatever was seen before;
* a shift of a maximum, `x + k * r`: of that x, or by a running sum, whose own rounding is as large;
* a power or the logarithm of a sum of `exp(x - max x)`, which is 1 at least once it has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Literal

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.linear import ONE, Linear, added, linear, scaled
from mcfuser.algebra.quotient import unguarded
from mcfuser.chain import Chain, Operator
from mcfuser.expr import Call, Cast, Const, Expr, Read, axes, conjuncts, reads

RepairKind = Literal["exponential", "shift", "ratio", "logarithm"]


@dataclass(frozen=True, slots=True)
class RepairStep:
    """What a repair does when r becomes s: the target times `exp(rate * (r - s))`, plus
    `rate * (r - s)`, times `(r / s) ** rate`, or plus `rate * log(r / s)`."""

    kind: RepairKind
    rate: float


def step_of(h: Any, t: Any, r: Any, s: Any) -> RepairStep | None:
    """The kind and rate of a repair h(t, r, s), a SymPy expression; None where h has none of the
    forms of `RepairStep`."""
    import sympy as sp

    shift = sp.simplify(h - t)
    if t not in shift.free_symbols:
        return _moves(shift, r, s, "shift", "logarithm")
    factor = sp.simplify(h / t)
    if t in factor.free_symbols:
        return None
    return _moves(sp.expand_log(sp.log(factor), force=True), r, s, "exponential", "ratio")


def _moves(
    by: Any, r: Any, s: Any, by_rate: RepairKind, by_logarithm: RepairKind
) -> RepairStep | None:  # fmt: skip
    """The step of a repair whose shift, or whose factor's logarithm, is `by`: of kind `by_rate`
    where that is `rate * (r - s)`, of kind `by_logarithm` where it is `rate * log(r / s)`, else
    None."""
    import sympy as sp

    rates = [(sp.simplify(sp.diff(by, x)), x, sign) for x, sign in ((r, 1), (s, -1))]
    for kind, power in ((by_rate, 0), (by_logarithm, 1)):
        constants = {sp.simplify(sign * rate * x**power) for rate, x, sign in rates}
        if len(constants) == 1 and (rate := constants.pop()).is_number:
            return RepairStep(kind, float(rate))
    return None


def instability(
    chain: Chain, target: Operator, body: Expr, moving: Operator, step: RepairStep | None
) -> str | None:
    """Why `target` may overflow or lose its value while the reduction `moving` changes, in words;
    None where its intermediate values are bounded.

    `body` is the body of `target` in which maps are written out, so that it reads inputs and
    reductions alone. `step` is its repair, None where the repair has none of the known forms.
    """
    if step is None:
        return f"what it accumulates has no bound while '{moving.out}' moves"
    if step.kind == "shift" and moving.reduce == "sum":
        return None
    if step.kind in ("ratio", "logarithm"):
        if moving.reduce == "sum" and _at_least_one(chain, moving) and _within(target, moving):
            return None
        return f"'{moving.out}' may come near zero while it moves"
    form = linear(body) if step.kind == "shift" else _exponent(body)
    if moving.reduce == "max" and form is not None and _anchored(chain, form, moving, target.over):
        return None
    return (
        f"what it accumulates has no bound while '{moving.out}' moves, which is not the maximum of "
        f"what it is taken from"
    )


def _within(target: Operator, moving: Operator) -> bool:
    return set(conjuncts(moving.domain)) <= set(conjuncts(target.domain))


def _anchored(chain: Chain, form: Linear, moving: Operator, over: Sequence[str]) -> bool:
    """The form is `k * (x - r)` and a rest that does not vary, for r the moving maximum of x."""
    reads_of_moving = [
        atom for atom in form if isinstance(atom, Read) and atom.tensor == moving.out
    ]
    if len(reads_of_moving) != 1:
        return False
    k = form[reads_of_moving[0]]
    rest = {atom: c for atom, c in form.items() if atom != reads_of_moving[0]}
    return any(
        all(not set(axes(atom)) & set(over) for atom in added(rest, x, k))
        for x in _maxima(chain, moving)
    )


def _maxima(chain: Chain, moving: Operator) -> list[Linear]:
    """Linear forms of values that a maximum is never less than."""
    body = unguarded(through_maps(chain, moving.body))
    whole = [body, *(body.args if isinstance(body, Call) and body.op == "max" else ())]
    return [linear(e) for e in whole]


def _exponent(e: Expr) -> Linear | None:
    """The sum of the exponents of the exponentials among the factors of a product, as a linear
    form; None where it is no linear form."""
    if isinstance(e, Cast):
        return _exponent(e.arg)
    if not isinstance(e, Call):
        return {}
    if e.op == "exp":
        return linear(e.args[0])
    if e.op == "exp2":
        return scaled(linear(e.args[0]), log(2))
    if e.op == "pow":
        base, power = e.args
        if isinstance(base, Const) and base.value > 0:
            return scaled(linear(power), log(base.value))
        inner = _exponent(base)
        if not isinstance(power, Const) or inner is None:
            return None if inner else {}
        return scaled(inner, float(power.value))
    if e.op == "neg":
        return _exponent(e.args[0])
    if e.op == "select" and Const(0.0) in e.args[1:]:
        return _exponent(e.args[2] if e.args[1] == Const(0.0) else e.args[1])
    if e.op in ("mul", "div"):
        one, two = (_exponent(a) for a in e.args)
        if one is None or two is None:
            return None
        return added(one, two, 1.0 if e.op == "mul" else -1.0)
    return {}


def _at_least_one(chain: Chain, o: Operator) -> bool:
    """The operator sums a positive number times `exp(k * (x - r))`, where r is the maximum of the
    same x over the same positions: the position of the maximum adds that number itself."""
    body = unguarded(through_maps(chain, o.body))
    form = _exponent(body) if _exponential(body) else None
    for r in reads(body) if form else ():
        top = chain.operator(r.tensor) if r.tensor not in chain.inputs else None
        if form is None or top is None or top.reduce != "max" or form.get(r, 0.0) >= 0:
            continue
        same = set(top.over) == set(o.over)
        same = same and set(conjuncts(top.domain)) == set(conjuncts(o.domain))
        rest = {atom: c for atom, c in form.items() if atom != r}
        if same and not set(added(rest, _maxima(chain, top)[0], form[r])) - {ONE}:
            return True
    return False


def _exponential(e: Expr) -> bool:
    """A product of exponentials and positive numbers."""
    if isinstance(e, Cast):
        return _exponential(e.arg)
    if isinstance(e, Call):
        power = e.op == "pow" and isinstance(e.args[0], Const)
        return e.op in ("exp", "exp2") or (
            (e.op in ("mul", "div") or power) and all(map(_exponential, e.args[: 2 - power]))
        )
    return isinstance(e, Const) and e.value > 0
