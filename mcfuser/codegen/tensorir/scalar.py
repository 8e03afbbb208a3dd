"""Scalar expressions as TVMScript text that LLVM compiles to full-width vector code.

exp, erf and tanh are polynomials: the C library's are called lane by lane, ten times slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import assert_never

from mcfuser.expr import NARROW, Call, Cast, Const, Expr, Index, Read

# Minimax fits, low order first. exp: of e^r on |r| <= ln(2)/2, 8e-8 relative. erf: of erf(x)/x in
# x^2 on |x| < 1, and of log(erfc(x)) on [0, 4], 1.2e-7 absolute together.
_EXP = (1.0, 1.0, 0.5, 0.16666415333747864, 0.04166608303785324, 0.008375135250389576,
        0.001395604107528925)  # fmt: skip
_ERF_NEAR = (1.1283791065216064, -0.3761262595653534, 0.11283600330352783, -0.026854444295167923,
             0.005189534742385149, -0.0008020835812203586, 7.88910110713914e-05)  # fmt: skip
_ERF_FAR = (1.5053849722335144e-08, -1.1283807754516602, -0.6365931630134583,
            -0.10293696075677872, 0.019617371261119843, -0.0005719572654925287,
            -0.001012263703159988, 0.0003028687206096947, -3.074340565945022e-05)  # fmt: skip
_TANH = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)  # of tanh(x)/x in x^2, 5e-8 below 0.3

_INFIX: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=",
                             "eq": "==", "ne": "!="}  # fmt: skip
_CALLS: Mapping[str, str] = {"max": "T.max", "min": "T.min", "abs": "T.abs", "log": "T.log",
                             "sqrt": "T.sqrt", "floor": "T.floor",
                             "round": "T.round"}  # fmt: skip
_BITS: Mapping[str, str] = {"shift_right": "T.shift_right", "bit_and": "T.bitwise_and"}
_LOGIC: Mapping[str, str] = {"and": "T.And", "or": "T.Or", "not": "T.Not"}
_RANK = ("bool", "int32", "int64", "float32")
"""The dtypes that are computed in, from narrow to wide."""
_NUMBER = re.compile(r"T\.int(?:32|64)\((-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Typed:
    """The text of a value, and its dtype: one of those that are computed in."""

    text: str
    dtype: str

    def to(self, dtype: str) -> Typed:
        """The value in another dtype that is computed in: a real becomes whole by truncation."""
        if self.dtype == dtype:
            return self
        if (number := _NUMBER.fullmatch(self.text)) is not None and dtype == "float32":
            return Typed(literal(int(number[1])), dtype)
        if dtype == "bool":
            return Typed(f"({self.text} != {literal(0, self.dtype)})", dtype)
        if self.dtype == "bool":  # TVM folds a cast of constant bools into a vector that is none
            return Typed(f"T.Select({self.text}, {literal(1, dtype)}, {literal(0, dtype)})", dtype)
        return Typed(f'T.Cast("{dtype}", {self.text})', dtype)

    def stored(self, dtype: str) -> str:
        """The text as a tensor of any dtype holds the value."""
        value = self.to("int32") if self.dtype == "bool" and dtype not in _RANK else self
        value = value.to(dtype) if dtype in _RANK else value
        return value.text if value.dtype == dtype else f'T.Cast("{dtype}", {value.text})'


def computed_in(dtype: str) -> str:
    """The dtype in which values that are stored so are computed."""
    if dtype in NARROW:
        return "int32"
    return dtype if dtype in _RANK else "float32"


def held_as(stored: str) -> str:
    """The dtype of a scratch that elements of a `stored` dtype are copied to as they are: the bits
    of bfloat16, for which TVM would allocate float32."""
    return "uint16" if stored == "bfloat16" else stored


def loaded(text: str, stored: str) -> Typed:
    """An element of memory of a `stored` type, in the dtype that it is computed in."""
    dtype = computed_in(stored)
    if stored == "bfloat16":  # TVM casts its bits as a whole number where the value is named
        bits = f'T.Cast("uint32", T.reinterpret("uint16", {text}))'
        return Typed(f'T.reinterpret("float32", T.shift_left({bits}, T.uint32(16)))', dtype)
    return Typed(text if dtype == stored else f'T.Cast("{dtype}", {text})', dtype)


def literal(value: float, dtype: str = "float32") -> str:
    """A constant of a dtype that is computed in."""
    if dtype == "bool":
        return f"T.bool({bool(value)})"
    if dtype != "float32":
        return f"T.{dtype}({int(value)})"
    if math.isinf(value):
        return f'T.float32("{"-" if value < 0 else ""}inf")'
    return f"T.float32({float(value)!r})"


@dataclass
class Scalar:
    """Writes expressions at one place of the program.

    `put` takes the lines that must come before, `read` and `index` give reads and axis positions,
    `known` the text of subexpressions that are computed already, as float32, `fresh` numbers the
    names of intermediate values.
    """

    put: Callable[[str], None]
    read: Callable[[Read], Typed]
    index: Callable[[str], Typed]
    known: Mapping[Expr, str] = field(default_factory=dict)
    fresh: Iterator[int] = field(default_factory=count)

    def text(self, e: Expr) -> str:
        """The value as float32."""
        return self.typed(e).to("float32").text

    def typed(self, e: Expr) -> Typed:
        """The value in the dtype that it has: whole where all that it is made of is."""
        if e in self.known:
            return Typed(self.known[e], "float32")
        if isinstance(e, Const):
            return _constant(e.value)
        if isinstance(e, Index):
            return self.index(e.axis)
        if isinstance(e, Read):
            return self.read(e)
        if isinstance(e, Cast):
            return self.typed(e.arg).to(computed_in(e.dtype))
        if isinstance(e, Call):
            return self._call(e)
        assert_never(e)

    def let(self, value: str, dtype: str = "float32") -> str:
        name = f"x{next(self.fresh)}"
        self.put(f"{name}: T.let[T.{dtype}] = {value}")
        return name

    def _call(self, e: Call) -> Typed:
        args = [self.typed(a) for a in e.args]
        if e.op in _LOGIC:
            words = ", ".join(a.to("bool").text for a in args)
            return Typed(f"{_LOGIC[e.op]}({words})", "bool")
        if e.op == "select":
            x, y = _alike(args[1:])
            return Typed(f"T.Select({args[0].to('bool').text}, {x.text}, {y.text})", x.dtype)
        if e.op in _BITS:
            x, y = _alike([a if a.dtype == "int64" else a.to("int32") for a in args])
            return Typed(f"{_BITS[e.op]}({x.text}, {y.text})", x.dtype)
        if e.op in _WHOLE:
            return _arithmetic(e, _alike(args, least="int32"))
        if e.op in ("floor", "round") and args[0].dtype != "float32":
            return args[0]
        return Typed(self._real(e, [a.to("float32").text for a in args]), "float32")

    def _real(self, e: Call, args: Sequence[str]) -> str:
        """Of float32, float32."""
        match e.op:
            case "div":
                return f"({args[0]} / {args[1]})"
            case "pow":
                return self._pow(e, args)
            case "exp":
                return self.exp(args[0])
            case "exp2":
                return self.exp2(args[0])
            case "tanh":
                return self._tanh(args[0])
            case "erf":
                return self._erf(args[0])
            case _:
                return f"{_CALLS[e.op]}({args[0]})"

    def _pow(self, e: Call, args: Sequence[str]) -> str:
        power = e.args[1].value if isinstance(e.args[1], Const) else None
        if power == 0.5:
            return f"T.sqrt({args[0]})"
        if power in (2, 3):
            x = self.let(args[0])
            return f"({' * '.join([x] * int(power))})"
        return f"T.pow({args[0]}, {args[1]})"

    def exp(self, x: str) -> str:
        """2^n * e^r with |r| <= ln(2)/2. Below the clamp n = -127, whose bits are zero: exp(-inf)
        is 0 with no test; above it the result is infinite, and not a number stays so."""
        whole = self.let(x)
        x = self.let(f"T.min(T.max({whole}, T.float32(-88.0296919)), T.float32(88.3762626))")
        n = self.let(f"T.floor({x} * T.float32(1.4426950408889634) + T.float32(0.5))")
        r = self.let(f"({x} - {n} * T.float32(0.693359375)) - {n} * T.float32(-0.000212194440)")
        return self._power_of_two(whole, n, r, "88.3762626")

    def exp2(self, x: str) -> str:
        """The same of x * ln(2), whose whole part is that of x."""
        whole = self.let(x)
        x = self.let(f"T.min(T.max({whole}, T.float32(-127)), T.float32(127.499992))")
        n = self.let(f"T.floor({x} + T.float32(0.5))")
        r = self.let(f"({x} - {n}) * T.float32({math.log(2)!r})")
        return self._power_of_two(whole, n, r, "127.499992")

    def _power_of_two(self, whole: str, n: str, r: str, most: str) -> str:
        """2^n * e^r, infinite where what it comes from is above `most`."""
        power = f'T.reinterpret("float32", T.shift_left(T.Cast("int32", {n}) + 127, 23))'
        value = self.let(f"{_horner(_EXP, r)} * {power}")
        beyond = f'{whole} * T.float32("inf")'
        return self.let(f"T.Select({whole} <= T.float32({most}), {value}, {beyond})")

    def _tanh(self, x: str) -> str:
        """By exp, save near zero, where 1 - 2 / (e^2x + 1) would cancel: there by the series."""
        x = self.let(x)
        doubled = self.exp(f"T.float32(2) * {x}")
        far = self.let(f"T.float32(1) - T.float32(2) / ({doubled} + T.float32(1))")
        near = f"{x} * {_horner(_TANH, self.let(f'{x} * {x}'))}"
        return self.let(f"T.Select(T.abs({x}) < T.float32(0.3), {near}, {far})")

    def _erf(self, x: str) -> str:
        x = self.let(x)
        size = self.let(f"T.min(T.float32(4), T.abs({x}))")  # in this order NaN stays
        tail = self.exp(_horner(_ERF_FAR, size))
        far = self.let(f"T.float32(1) - {tail}")
        near = f"{x} * {_horner(_ERF_NEAR, self.let(f'{x} * {x}'))}"
        signed = f"T.Select({x} < T.float32(0), T.float32(0) - {far}, {far})"
        return self.let(f"T.Select({size} < T.float32(1), {near}, {signed})")


_WHOLE = ("add", "sub", "mul", "neg", "abs", "max", "min", "lt", "le", "eq", "ne")
"""What is whole of whole numbers, or a condition on them."""


def _constant(value: float | int | bool) -> Typed:
    if isinstance(value, bool):
        dtype = "bool"
    elif isinstance(value, int):
        dtype = "int32" if -(2**31) <= value < 2**31 else "int64"
    else:
        dtype = "float32"
    return Typed(literal(value, dtype), dtype)


def _alike(args: Sequence[Typed], least: str = "bool") -> list[Typed]:
    """All in the widest of their dtypes; constants as such."""
    dtype = max((least, *(a.dtype for a in args)), key=_RANK.index)
    return [a.to(dtype) for a in args]


def _arithmetic(e: Call, args: Sequence[Typed]) -> Typed:
    dtype, words = args[0].dtype, [a.text for a in args]
    if e.op in ("lt", "le", "eq", "ne"):
        return Typed(f"({words[0]} {_INFIX[e.op]} {words[1]})", "bool")
    if e.op in _INFIX:
        return Typed(f"({words[0]} {_INFIX[e.op]} {words[1]})", dtype)
    if e.op == "neg":
        return Typed(f"({literal(0, dtype)} - {words[0]})", dtype)
    if e.op in ("max", "min") and isinstance(e.args[1], Const):
        words.reverse()  # of two, the second is kept where a comparison fails: NaN stays
    return Typed(f"{_CALLS[e.op]}({', '.join(words)})", dtype)


def _horner(coefficients: Sequence[float], x: str) -> str:
    result = literal(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = f"({literal(c)} + {x} * {result})"
    return result
