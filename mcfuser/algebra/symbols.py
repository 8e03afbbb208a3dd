"""Expressions as SymPy's, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from mcfuser.algebra.linear import signed
from mcfuser.errors import ChainError
from mcfuser.expr import Call, Cast, Const, Expr, Index, Read

_UNARY: Mapping[str, str] = {
    "exp": "exp",
    "log": "log",
    "tanh": "tanh",
    "sqrt": "sqrt",
    "erf": "erf",
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "pow": lambda a, b: a**b,
}  # fmt: skip


def to_sympy(e: Expr, symbols: Mapping[str, Any]) -> Any:
    """The expression in SymPy's terms; raises ChainError for an operator with no inverse."""
    import sympy as sp

    if isinstance(e, Index):
        return symbols[e.axis]
    if isinstance(e, Const):
        return sp.nsimplify(e.value)
    if isinstance(e, Cast):
        raise ChainError(f"'{e.dtype}' of the moving value cannot be inverted")
    if isinstance(e, Read):
        raise ChainError(f"'{e.tensor}' in the moving value cannot be inverted")
    if not isinstance(e, Call):
        assert_never(e)
    args = [to_sympy(a, symbols) for a in e.args]
    if e.op in _UNARY:
        return getattr(sp, _UNARY[e.op])(args[0])
    if e.op in _BINARY:
        return _BINARY[e.op](*args)
    if e.op == "neg":
        return -args[0]
    if e.op == "exp2":
        return sp.exp(args[0] * sp.log(2))
    if e.op == "select":
        return args[0] * args[1] + (1 - args[0]) * args[2]
    raise ChainError(f"'{e.op}' of the moving value cannot be inverted")


def from_sympy(value: Any) -> Expr:
    """The expression that SymPy found; raises ChainError for what no operator says."""
    import sympy as sp

    if value.is_Symbol:
        return Index(value.name)
    if value.is_number:
        return Const(float(value))
    if value.is_Add:
        return signed([_from_signed(a) for a in value.as_ordered_terms()])
    if value.is_Mul:
        parts = [from_sympy(a) for a in value.as_ordered_factors()]
        result = parts[0]
        for part in parts[1:]:
            result = Call("mul", (result, part))
        return result
    if isinstance(value, sp.exp):
        powers = sp.expand(value.args[0] / sp.log(2))
        if not powers.has(sp.log):
            return Call("exp2", (from_sympy(powers),))
        return Call("exp", (from_sympy(value.args[0]),))
    if value.is_Pow and value.args[0] == 2:
        return Call("exp2", (from_sympy(value.args[1]),))
    if isinstance(value, sp.log):
        return _logarithm(value.args[0])
    if value.is_Pow and value.args[1] == -1:
        return Call("div", (Const(1.0), from_sympy(value.args[0])))
    if value.is_Pow:
        return Call("pow", (from_sympy(value.args[0]), from_sympy(value.args[1])))
    raise ChainError(f"the repair '{value}' cannot be written as an expression")


def _logarithm(value: Any) -> Expr:
    """Of a power it is the exponent, times a number: the power might overflow on the way."""
    import sympy as sp

    base, exponent = value.as_base_exp()
    if base == sp.E:
        return from_sympy(exponent)
    if base == 2:
        return from_sympy(sp.expand(exponent * sp.log(2).evalf()))
    return Call("log", (from_sympy(value),))


def _from_signed(term: Any) -> tuple[bool, Expr]:
    """A term of a sum without its sign, and whether that is minus."""
    minus = bool(term.could_extract_minus_sign())
    return minus, from_sympy(-term if minus else term)
