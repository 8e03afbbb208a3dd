"""Values in a Triton kernel: the text of a tile, the axes along which it extends, its dtype.

Expressions become text here. Two tiles are combined over the union of their axes: each gets a
`None` for every axis that it lacks, and is permuted only where its axes have another order. Half
precision is a storage format: arithmetic happens in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from mcfuser.chain import LOWEST
from mcfuser.codegen.triton.dialect import Dialect
from mcfuser.codegen.triton.power import power
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Index, Read, call
from mcfuser.lowering.triton.instructions import HALF
from mcfuser.space.reference import applied
from mcfuser.space.statement import Illegal

COMPARE, OR, AND, SHIFT, SUM, TERM, UNARY, ATOM = range(1, 9)
"""How strongly Python binds, from comparison to atom."""

_RANK = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_INFIX: Mapping[str, tuple[int, str]] = {
    "or": (OR, "|"), "and": (AND, "&"), "lt": (COMPARE, "<"), "le": (COMPARE, "<="),
    "eq": (COMPARE, "=="), "ne": (COMPARE, "!="), "add": (SUM, "+"), "sub": (SUM, "-"),
    "mul": (TERM, "*"), "div": (TERM, "/"), "shift_right": (SHIFT, ">>"), "bit_and": (AND, "&"),
}  # fmt: skip
_BITS = ("shift_right", "bit_and")
_FUNCTIONS = ("exp", "exp2", "log", "sqrt", "erf")
_POWERS: Mapping[float, str] = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}"}


@dataclass(frozen=True, slots=True)
class TileValue:
    """Text with the axes along which it extends, in the order of its dimensions."""

    text: str
    space: tuple[str, ...]
    dtype: str
    strength: int = ATOM
    constant: bool = False

    def within(self, strength: int) -> str:
        """The text as an operand of an operator that binds with that strength."""
        return self.text if self.strength >= strength else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression sees: its language, its reads, its axes, and the order of dimensions.

    `name` keeps an intermediate result under a name, where a line would become too long.
    """

    dialect: Dialect
    read: Callable[[Read], TileValue]
    index: Callable[[str], TileValue]
    order: tuple[str, ...]
    name: Callable[[str], str]


_LONG = 64


def literal(value: float | int | bool) -> TileValue:
    if isinstance(value, bool):
        return TileValue(repr(value), (), "bool", constant=True)
    if isinstance(value, int):
        return TileValue(repr(value), (), "int32", UNARY if value < 0 else ATOM, True)
    if math.isinf(value) or math.isnan(value):
        sign = "-" if value < 0 else ""
        return TileValue(
            f'{sign}float("{abs(value)}")', (), "float32", UNARY if sign else ATOM, True
        )
    if value == LOWEST:
        return TileValue("LOWEST", (), "float32", ATOM, True)
    return TileValue(repr(value), (), "float32", UNARY if value < 0 else ATOM, True)


def value(e: Expr, scope: Scope) -> TileValue:
    """The value of an expression as text; raises Illegal where Triton cannot express it."""
    if isinstance(e, Const):
        return literal(e.value)
    if isinstance(e, Index):
        return scope.index(e.axis)
    if isinstance(e, Read):
        return scope.read(e)
    if isinstance(e, Cast):
        return cast(scope.dialect, value(e.arg, scope), e.dtype)
    if not isinstance(e, Call):
        assert_never(e)
    if e.op == "add" and (opposite := _negated(e.args[1])) is not None:
        e = Call("sub", (e.args[0], opposite))
    if e.op == "tanh":
        return value(_tanh(e.args[0]), scope)
    if e.op == "pow" and (other := power(e)) is not None:
        return value(other, scope)
    args = [_short(value(a, scope), scope) for a in e.args]
    return _folded(e.op, args) or apply(e.op, args, scope)


def _folded(op: str, args: Sequence[TileValue]) -> TileValue | None:
    """The operator applied to numbers that are known here: positions of an iteration that is
    written out, and constants."""
    numbers = [_number(v) for v in args]
    if any(n is None for n in numbers):
        return None
    with np.errstate(all="ignore"):
        found = applied(op, [np.asarray(n) for n in numbers])
    return literal(found.item())


def _number(v: TileValue) -> float | int | bool | None:
    """The number that a constant's text is."""
    if not v.constant:
        return None
    if v.text in ("True", "False"):
        return v.text == "True"
    if v.text == "LOWEST":
        return LOWEST
    try:
        return int(v.text) if v.dtype in DISCRETE else float(v.text)
    except ValueError:
        return None


def _short(v: TileValue, scope: Scope) -> TileValue:
    if len(v.text) < _LONG or v.constant:
        return v
    return replace(v, text=scope.name(v.text), strength=ATOM)


def _tanh(x: Expr) -> Expr:
    """By an exponential, for Triton has no tanh; where that overflows, the quotient is 0."""
    factor = 2 / math.log(2)
    while isinstance(x, Call) and x.op in ("mul", "div") and isinstance(x.args[1], Const):
        by = x.args[1].value
        if x.op == "div" and not by:
            break
        factor, x = factor * by if x.op == "mul" else factor / by, x.args[0]
    return call(
        "sub", 1.0, call("div", 2.0, call("add", call("exp2", call("mul", x, factor)), 1.0))
    )


def _negated(e: Expr) -> Expr | None:
    """x, where the expression is -1 * x."""
    if isinstance(e, Call) and e.op == "mul" and e.args[0] == Const(-1.0):
        return e.args[1]
    return None


def cast(to: Dialect, v: TileValue, dtype: str) -> TileValue:
    """The value in another dtype, in the language `to`."""
    if v.dtype == dtype:
        return v
    if v.constant:
        return _constant(to, v, dtype)
    if dtype == "bool":
        return TileValue(f"{v.within(SUM)} != 0", v.space, "bool", COMPARE)
    return TileValue(f"{v.within(ATOM)}.to({to.word(dtype)})", v.space, dtype)


def _constant(to: Dialect, v: TileValue, dtype: str) -> TileValue:
    """A constant of another dtype; what is no plain number becomes one where the kernel runs."""
    try:
        number = float(v.text)
    except ValueError:
        if dtype in DISCRETE:
            whole = to.full("()", v.text, named(v.dtype))
            return TileValue(f"{whole}.to({to.word(dtype)})", (), dtype)
        return replace(v, dtype=dtype)
    if dtype == "bool":
        return literal(bool(number))
    if dtype in DISCRETE and v.dtype not in DISCRETE:
        return replace(literal(int(number)), dtype=dtype)
    return replace(v, dtype=dtype)


def named(dtype: str) -> str:
    """A dtype as Triton names it."""
    return "int1" if dtype == "bool" else dtype


def widen(to: Dialect, v: TileValue) -> TileValue:
    """The value in a dtype that is computed in."""
    return cast(to, v, "float32") if v.dtype in HALF else v


def _counted(to: Dialect, v: TileValue) -> TileValue:
    """The value as a number: a condition counts as 0 or 1."""
    if v.dtype != "bool":
        return v
    if v.constant:
        return literal(int(v.text == "True"))
    return TileValue(f"{v.within(ATOM)}.to({to.word('int32')})", v.space, "int32")


def aligned(to: Dialect, v: TileValue, space: Sequence[str]) -> TileValue:
    """The value with its dimensions in the order of `space`, and 1 for those that it lacks."""
    if not v.space or v.space == tuple(space):
        return v
    kept = tuple(a for a in space if a in v.space)
    text, strength = v.text, v.strength
    if kept != v.space:
        order = ", ".join(str(v.space.index(a)) for a in kept)
        if len(kept) == 2:
            text = f"{to.moving('trans')}({text})"
        else:
            text = f"{to.moving('permute')}({text}, ({order}))"
        strength = ATOM
    if kept == tuple(space):
        return TileValue(text, kept, v.dtype, strength)
    if strength < ATOM:
        text = f"({text})"
    places = ", ".join(":" if a in kept else "None" for a in space)
    return TileValue(f"{text}[{places}]", tuple(space), v.dtype)


def spread(
    to: Dialect, v: TileValue, space: Sequence[str], width: Callable[[str], int]
) -> TileValue:
    """The value with every dimension of `space` at its full width."""
    if v.space == tuple(space) and not v.constant:
        return v
    shape = shape_text([width(a) for a in space])
    if not v.space:
        words = to.full(shape, v.text, named(v.dtype))
    elif set(v.space) == set(space):
        return aligned(to, v, space)
    else:
        words = f"{to.moving('broadcast_to')}({aligned(to, v, space).text}, {shape})"
    return TileValue(words, tuple(space), v.dtype)


def shape_text(extents: Sequence[int]) -> str:
    return f"({', '.join(map(str, extents))}{',' if len(extents) == 1 else ''})"


def apply(op: str, args: Sequence[TileValue], scope: Scope) -> TileValue:
    """An operator applied to tiles."""
    if op == "pow":
        return _power(args[0], args[1], scope)
    to = scope.dialect
    space = tuple(a for a in scope.order if any(a in v.space for v in args))
    logic = op in ("and", "or", "not")
    parts = [cast(to, v, "bool") if logic else widen(to, v) for v in args]
    if op == "select":
        return _select(to, cast(to, args[0], "bool"), parts[1], parts[2], space)
    parts = parts if logic else [_counted(to, v) for v in parts]
    parts = [aligned(to, v, space) for v in parts]
    if op in _BITS:
        parts = [v if v.dtype == "int64" else cast(to, v, "int32") for v in parts]
    dtype = max((v.dtype for v in parts), key=_RANK.index)
    if op in _INFIX:
        return _infix(op, parts[0], parts[1], space, dtype)
    if op == "not":
        return TileValue(f"~{parts[0].within(ATOM)}", space, "bool", UNARY)
    if op == "neg":
        return TileValue(f"-{parts[0].within(UNARY)}", space, dtype, UNARY)
    if op in ("max", "min", "abs"):
        words = ", ".join(cast(to, v, dtype).text for v in parts)
        function = to.word("abs" if op == "abs" else f"{op}imum")
        return TileValue(f"{function}({words})", space, dtype)
    if op in ("floor", "round") and dtype in ("bool", "int32", "int64"):
        return parts[0]
    dtype = dtype if dtype == "float64" else "float32"
    x = cast(to, parts[0], dtype)
    if op == "floor":
        return TileValue(f"{to.word('floor')}({x.text})", space, dtype)
    if op == "round":
        return _rounded(to, x, scope)
    if op not in _FUNCTIONS:
        raise Illegal(f"operator '{op}' has no counterpart in Triton")
    return TileValue(f"{to.word(op)}({x.text})", space, dtype)


def _rounded(to: Dialect, x: TileValue, scope: Scope) -> TileValue:
    """The nearest whole number, the even one of two. Where a number of 24 bits is added that has no
    bits left for fractions, the processor rounds so."""
    name = x.text if x.text.isidentifier() else scope.name(x.text)
    most, last = (2.0**51, 1.5 * 2.0**52) if x.dtype == "float64" else (2.0**22, 1.5 * 2.0**23)
    words = f"{to.word('abs')}({name}) < {most!r}, {name} + {last!r} - {last!r}, {name}"
    return TileValue(f"{to.word('where')}({words})", x.space, x.dtype)


def _infix(op: str, a: TileValue, b: TileValue, space: tuple[str, ...], dtype: str) -> TileValue:
    strength, sign = _INFIX[op]
    if op == "div" and dtype in ("bool", "int32", "int64"):
        dtype = "float32"
    left = a.within(strength + (strength == COMPARE))
    result = "bool" if strength <= AND and op not in _BITS else dtype
    constant = a.constant and b.constant
    return TileValue(f"{left} {sign} {b.within(strength + 1)}", space, result, strength, constant)


def _select(
    to: Dialect, condition: TileValue, a: TileValue, b: TileValue, space: tuple[str, ...]
) -> TileValue:
    dtype = max(a.dtype, b.dtype, key=_RANK.index)
    parts = (condition, cast(to, a, dtype), cast(to, b, dtype))
    words = ", ".join(aligned(to, v, space).text for v in parts)
    return TileValue(f"{to.word('where')}({words})", space, dtype)


def _power(base: TileValue, exponent: TileValue, scope: Scope) -> TileValue:
    """One of the powers that need no more than a product, a root or a quotient (power.py)."""
    to, number = scope.dialect, float(exponent.text)
    base = cast(to, widen(to, base), "float32")
    if number in _POWERS:
        name = base.text if base.text.isidentifier() else scope.name(base.text)
        return TileValue(_POWERS[number].format(name), base.space, base.dtype, TERM)
    if number == 0.5:
        return TileValue(f"{to.word('sqrt')}({base.text})", base.space, "float32")
    if number == -0.5:
        return TileValue(f"{to.word('rsqrt')}({base.text})", base.space, "float32")
    return TileValue(f"1.0 / {base.within(UNARY)}", base.space, "float32", TERM)


def both(to: Dialect, conditions: Sequence[TileValue], order: Sequence[str]) -> TileValue | None:
    """All conditions at once, None where there is none."""
    if not conditions:
        return None
    space = tuple(a for a in order if any(a in c.space for c in conditions))
    parts = [aligned(to, c, space) for c in conditions]
    if len(parts) == 1:
        return parts[0]
    return TileValue(" & ".join(p.within(AND + 1) for p in parts), space, "bool", AND)
