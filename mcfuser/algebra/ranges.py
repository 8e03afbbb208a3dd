"""Ranges: between which numbers an expression's value lies, by interval arithmetic.

A reduction absorbs its identity: zero in a sum, the lowest number in a maximum. A position that it
must not take, past an axis' end or outside a domain, therefore needs no mask where the range of the
reduction's body there is the identity alone. What is known of such positions (a load is zero past
the end, a source was set to the lowest number) comes in through `Facts`; arithmetic does the rest:
`exp2(c * (LOWEST - r))` is zero for every ordinary r, however it is spelt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from mcfuser.chain import LOWEST
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Index, Read

ORDINARY = 1e30
"""The largest magnitude of data, and of what data become by additions, multiplications and other
operations without a pole. Numbers far beyond it are masks."""


INTEGERS = 2.0**31
"""Numbers of smaller magnitude have a value of every integer type."""
HUGE = math.exp(88)
"""A number below the one at which exponential functions of float32 end, on any device."""
TINY = 2.0**-126
"""The least float32 above 0 that every device tells from it."""
LAST_BITS = 2.0**-20
"""By how much, relatively, two libraries' values of one function may differ in float32."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """All numbers from `low` to `high`, infinities included. A range that is unbounded on both
    sides may also be no number."""

    low: float
    high: float

    @property
    def ordinary(self) -> bool:
        return self.low >= -ORDINARY and self.high <= ORDINARY


ANY = ValueRange(-math.inf, math.inf)
FINITE = ValueRange(-ORDINARY, ORDINARY)
ZERO = ValueRange(0.0, 0.0)
TRUE = ValueRange(1.0, 1.0)
TRUTH = ValueRange(0.0, 1.0)
"""A condition is 0 or 1."""


class Facts(Protocol):
    """What is known at the positions in question."""

    def read(self, r: Read) -> ValueRange:
        """The range of an element that is read."""

    def false(self, condition: Expr) -> bool:
        """Whether a condition is known not to hold."""


def value(e: Expr, facts: Facts) -> ValueRange:
    """The range of an expression's value. Operations on ordinary numbers that have no pole are
    taken to give ordinary numbers."""
    if isinstance(e, Const):
        return ValueRange(float(e.value), float(e.value))
    if isinstance(e, Index):
        return ValueRange(0.0, ORDINARY)
    if isinstance(e, Read):
        return facts.read(e)
    if isinstance(e, Cast):
        return _cast(value(e.arg, facts), e.dtype)
    if not isinstance(e, Call):
        assert_never(e)
    if e.op == "select":
        return _select(e, facts)
    if facts.false(e):
        return ZERO
    args = [value(a, facts) for a in e.args]
    if e.op in _CONDITIONS:
        if e.op in ("and", "or", "not"):
            args = [_truth(x) for x in args]
        return TRUTH if ANY in args else _CONDITIONS[e.op](*args)
    return ANY if ANY in args else _rounded_outward(_ARITHMETIC[e.op](*args), args)


def _rounded_outward(result: ValueRange, args: Sequence[ValueRange]) -> ValueRange:
    """What ordinary numbers give is ordinary, unless it is infinite. What overflows may be
    infinite, or be held as the largest number."""
    if math.isnan(result.low) or math.isnan(result.high):
        return ANY
    finite = math.isfinite(result.low) and math.isfinite(result.high)
    if finite and all(a.ordinary for a in args):
        return ValueRange(max(result.low, -ORDINARY), min(result.high, ORDINARY))
    low = -math.inf if result.low < LOWEST else min(result.low, -LOWEST)
    high = math.inf if result.high > -LOWEST else max(result.high, LOWEST)
    return ValueRange(low, high)


def _cast(x: ValueRange, dtype: str) -> ValueRange:
    if dtype == "bool":
        return _truth(x)
    if dtype in DISCRETE:  # rounded towards zero; what is too large becomes any integer
        if _whole(x):
            return ValueRange(min(x.low, 0.0), max(x.high, 0.0))
        return FINITE if x.ordinary else ANY
    if dtype == "float16":  # the lowest number is infinite there
        low = -math.inf if x.low < -ORDINARY else x.low
        high = math.inf if x.high > ORDINARY else x.high
        return ValueRange(low, -math.inf if x.high < -ORDINARY else high)
    return x


# --- choices


def _truth(x: ValueRange) -> ValueRange:
    """Whether a value is other than zero."""
    return ZERO if x == ZERO else TRUTH if x.low <= 0 <= x.high else TRUE


def _select(e: Call, facts: Facts) -> ValueRange:
    condition, first, second = e.args
    held = _truth(value(condition, facts))
    if held == ZERO:
        return value(second, facts)
    one = _narrowed(condition, first, value(first, facts), holds=True)
    if held == TRUE:
        return one
    other = _narrowed(condition, second, value(second, facts), holds=False)
    return ValueRange(min(one.low, other.low), max(one.high, other.high))


def _narrowed(condition: Expr, chosen: Expr, range_: ValueRange, holds: bool) -> ValueRange:
    """The range of what is chosen where the condition holds, or where it does not, in case that it
    is `chosen <= number`."""
    if not isinstance(condition, Call) or condition.op != "le" or condition.args[0] != chosen:
        return range_
    limit = condition.args[1]
    if range_ == ANY or not isinstance(limit, Const):
        return range_
    if holds:
        return replace(range_, high=min(range_.high, float(limit.value)))
    return replace(range_, low=max(range_.low, float(limit.value)))


# --- operators


def _hull(numbers: Sequence[float]) -> ValueRange:
    return ANY if any(map(math.isnan, numbers)) else ValueRange(min(numbers), max(numbers))


def _product(x: ValueRange, y: ValueRange) -> ValueRange:
    bounded = all(map(math.isfinite, (x.low, x.high, y.low, y.high)))
    if not bounded and any(r.low <= 0 <= r.high for r in (x, y)):
        return ANY  # zero times infinity is no number
    return _hull([a * b for a in (x.low, x.high) for b in (y.low, y.high)])


def _quotient(x: ValueRange, y: ValueRange) -> ValueRange:
    if y.low <= 0 <= y.high:
        return ANY
    return _hull([_divided(a, b) for a in (x.low, x.high) for b in (y.low, y.high)])


def _divided(a: float, b: float) -> float:
    return math.nan if math.isinf(a) and math.isinf(b) else a / b


def _power(x: ValueRange, y: ValueRange) -> ValueRange:
    if y.low != y.high or y.low <= 0:
        return ANY
    if x == ZERO:
        return ZERO
    return FINITE if x.ordinary and (x.low >= 0 or y.low == int(y.low)) else ANY


def _shifted(x: ValueRange, y: ValueRange) -> ValueRange:
    """No farther from zero than the number that is shifted."""
    if not _whole(x):
        return FINITE
    return ValueRange(min(x.low, 0.0), max(x.high, 0.0))


def _whole(x: ValueRange) -> bool:
    """Whether numbers are small enough for every integer type; others become any integer."""
    return x.low > -INTEGERS and x.high < INTEGERS


def _common_bits(x: ValueRange, y: ValueRange) -> ValueRange:
    """No more than either of two numbers, neither of them negative."""
    if not _whole(x) or not _whole(y):
        return FINITE
    return ValueRange(0.0, min(x.high, y.high)) if x.low >= 0 and y.low >= 0 else FINITE


def _magnitude(x: ValueRange) -> ValueRange:
    low = 0.0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return ValueRange(low, max(abs(x.low), abs(x.high)))


def _rising(f: Callable[[float], float]) -> Callable[[ValueRange], ValueRange]:
    return lambda x: ValueRange(f(x.low), f(x.high))


def _computed(
    f: Callable[[float], float], least: float = -math.inf, most: float = math.inf
) -> Callable[[ValueRange], ValueRange]:
    """A rising function with values from `least` to `most`, of which libraries round the last bits
    differently. Its zeros are exact."""
    return lambda x: ValueRange(
        max(least, _scaled(f(x.low), -LAST_BITS)), min(most, _scaled(f(x.high), LAST_BITS))
    )


def _scaled(x: float, by: float) -> float:
    return x + abs(x) * by if math.isfinite(x) else x


def _exponential(base: float) -> Callable[[ValueRange], ValueRange]:
    """Powers of a base. Beyond a huge one kernels give infinity or some number beyond it, and zero
    or some number below it in place of a tiny one."""
    largest = math.log(HUGE, base)

    def of(x: ValueRange) -> ValueRange:
        low, high = (_scaled(base ** min(x.low, largest), -LAST_BITS), math.inf)
        if x.high <= largest:
            high = _scaled(base**x.high, LAST_BITS)
        return ValueRange(low if low >= TINY else 0.0, high)

    return of


def _floor(x: float) -> float:
    return x if math.isinf(x) else float(math.floor(x))


def _round(x: float) -> float:
    return x if math.isinf(x) else float(round(x))


def _positive(f: Callable[[float], float], at_zero: bool) -> Callable[[ValueRange], ValueRange]:
    """A rising function of numbers above zero, of zero itself as well or not."""

    def of(x: ValueRange) -> ValueRange:
        defined = x.low > 0 or (at_zero and x.low == 0)
        return _computed(f)(x) if defined else ANY

    return of


def _less(x: ValueRange, y: ValueRange) -> ValueRange:
    return TRUE if x.high < y.low else ZERO if x.low >= y.high else TRUTH


def _at_most(x: ValueRange, y: ValueRange) -> ValueRange:
    return _opposite(_less(y, x))


def _equal(x: ValueRange, y: ValueRange) -> ValueRange:
    if x == y and x.low == x.high:
        return TRUE
    return TRUTH if x.low <= y.high and y.low <= x.high else ZERO


def _opposite(x: ValueRange) -> ValueRange:
    return ValueRange(1.0 - x.high, 1.0 - x.low)


_CONDITIONS: dict[str, Callable[..., ValueRange]] = {
    "lt": _less,
    "le": _at_most,
    "eq": _equal,
    "ne": lambda x, y: _opposite(_equal(x, y)),
    "and": lambda x, y: ValueRange(min(x.low, y.low), min(x.high, y.high)),
    "or": lambda x, y: ValueRange(max(x.low, y.low), max(x.high, y.high)),
    "not": _opposite,
}

_ARITHMETIC: dict[str, Callable[..., ValueRange]] = {
    "add": lambda x, y: ValueRange(x.low + y.low, x.high + y.high),
    "sub": lambda x, y: ValueRange(x.low - y.high, x.high - y.low),
    "neg": lambda x: ValueRange(-x.high, -x.low),
    "mul": _product,
    "div": _quotient,
    "max": lambda x, y: ValueRange(max(x.low, y.low), max(x.high, y.high)),
    "min": lambda x, y: ValueRange(min(x.low, y.low), min(x.high, y.high)),
    "pow": _power,
    "shift_right": _shifted,
    "bit_and": _common_bits,
    "abs": _magnitude,
    "exp": _exponential(math.e),
    "exp2": _exponential(2.0),
    "log": _positive(math.log, at_zero=False),
    "sqrt": _positive(math.sqrt, at_zero=True),
    "tanh": _computed(math.tanh, -1.0, 1.0),
    "erf": _computed(math.erf, -1.0, 1.0),
    "floor": _rising(_floor),
    "round": _rising(_round),
}
