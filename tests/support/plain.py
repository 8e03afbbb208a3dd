"""What a chain means, one element at a time: the plainest evaluator, to judge all others by.

It shares no code with the rooms that it judges. A value is a condition (bool), a whole number
(int, exact) or a real (float). Casts to float types and the types of results say a precision only,
so reals are float64 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import assert_never

import numpy as np

from mcfuser.chain import Chain, Operator
from mcfuser.expr import Affine, Call, Cast, Const, Expr, Index, Read, reads, walk

Value = bool | int | float
Places = dict[tuple[int, ...], Value]
"""A tensor: its value at every position."""

BOUNDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1)}
"""The numbers that the types of one and two bytes have."""
LOWEST = {"int32": -(2**31), "int64": -(2**63)}
"""Where a maximum of whole numbers starts; of reals at the lowest float32."""
LOWEST_REAL = -3.4028234663852886e38


def plain(chain: Chain, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The result of every operator as a float64 array; `inputs` are as the chain indexes them.

    Extents known at run time only stand at their upper bounds.
    """
    known = {n: _input(np.asarray(inputs[n]), chain.tensor(n).dtype) for n in chain.inputs}
    found = {}
    for o in chain.operators:
        known[o.out] = _operator(chain, o, known)
        array = np.zeros([chain.size(a) for a in o.axes])
        for place, value in known[o.out].items():
            array[place] = float(value)
        found[o.out] = array
    return found


def _input(array: np.ndarray, dtype: str) -> Places:
    """The elements of an input, in the kind of value that its type has."""
    kind = {"bool": bool, "int32": int, "int64": int}.get(dtype, float)
    return {place: kind(array[place]) for place in np.ndindex(array.shape)}


def _operator(chain: Chain, o: Operator, known: Mapping[str, Places]) -> Places:
    dtype = chain.tensor(o.out).dtype
    sums = _on_sums(chain)
    start = LOWEST.get(dtype, LOWEST_REAL) if o.reduce == "max" else cast(0, dtype)
    places = product(*(range(chain.size(a)) for a in o.axes))
    found: Places = dict.fromkeys(places, start)
    for everywhere in product(*(range(chain.size(a)) for a in o.related)):
        at = dict(zip(o.related, everywhere, strict=True))
        if o.domain is not None and not condition(value_of(o.domain, at, known, sums)):
            continue
        value = cast(value_of(o.body, at, known, sums), dtype)
        place = everywhere[: len(o.axes)]
        if o.reduce == "sum":
            found[place] = found[place] + value
        elif o.reduce == "max":
            found[place] = maximum(found[place], value)
        else:
            found[place] = value
    return found


def _on_sums(chain: Chain) -> frozenset[str]:
    """The results that are sums of this chain, or maps that read such results."""
    found: set[str] = set()
    for o in chain.operators:
        through = o.reduce == "none" and any(r.tensor in found for r in reads(o.body))
        if o.reduce == "sum" or through:
            found.add(o.out)
    return frozenset(found)


def value_of(
    e: Expr, at: Mapping[str, int], known: Mapping[str, Places], sums: frozenset[str]
) -> Value:
    """The value of an expression where the axes stand at these positions.

    A quotient whose divisor reads one of `sums` is 0 where its numerator is 0; it may be no number
    where the divisor is none, since nothing guards a divisor that cannot be 0.
    """
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Index):
        return at[e.axis]
    if isinstance(e, Read):
        return known[e.tensor][tuple(_position(i, at) for i in e.indices)]
    if isinstance(e, Cast):
        return cast(value_of(e.arg, at, known, sums), e.dtype)
    if isinstance(e, Call):
        args = [value_of(a, at, known, sums) for a in e.args]
        if e.op == "div" and args[0] == 0 and _reads_any(e.args[1], sums):
            return math.nan if args[1] != args[1] else 0.0
        return FUNCTIONS[e.op](*args)
    assert_never(e)


def _position(index: Affine, at: Mapping[str, int]) -> int:
    return index.offset + sum(c * at[a] for a, c in index.terms)


def _reads_any(e: Expr, tensors: frozenset[str]) -> bool:
    return any(isinstance(node, Read) and node.tensor in tensors for node in walk(e))


# --- values ---------------------------------------------------------------------------------


def condition(x: Value) -> bool:
    return x != 0


def cast(x: Value, dtype: str) -> Value:
    """The value in a type: conditions, whole numbers toward zero, those of one or two bytes within
    their bounds, and reals of any precision."""
    if dtype == "bool":
        return condition(x)
    if dtype in BOUNDS:
        low, high = BOUNDS[dtype]
        return math.nan if x != x else int(min(max(x, low), high))
    if dtype not in LOWEST:
        return float(x)
    return int(x) if LOWEST[dtype] - 1 < x < -LOWEST[dtype] else outside(dtype)


def outside(dtype: str) -> Value:
    """What a real becomes that no whole number of the type is near: any number, machines differ."""
    return math.nan


def _number(x: Value) -> int | float:
    """A condition counts as 0 or 1."""
    return int(x) if isinstance(x, bool) else x


def _numbers(function: Callable[..., Value]) -> Callable[..., Value]:
    """The function on numbers: whole ones as long as all of them are, else reals. Whole results are
    those of 64 bits."""

    def of_numbers(*args: Value) -> Value:
        numbers = [_number(x) for x in args]
        whole = all(isinstance(x, int) for x in numbers)
        found = function(*(numbers if whole else map(float, numbers)))
        fits = not isinstance(found, int) or -(2**63) <= found < 2**63
        return found if fits else outside("int64")

    return of_numbers


def _reals(function: Callable[..., float]) -> Callable[..., Value]:
    return lambda *args: function(*map(float, args))


def maximum(x: Value, y: Value) -> Value:
    """The larger one; what is not a number wins."""
    return x if x != x or x >= y else y


def minimum(x: Value, y: Value) -> Value:
    return x if x != x or x <= y else y


# --- IEEE where Python raises ---------------------------------------------------------------


def divide(x: float, y: float) -> float:
    if y != 0:
        return x / y
    if x == 0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def exponential(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def logarithm(x: float) -> float:
    if x == 0:
        return -math.inf
    return math.nan if x < 0 else math.log(x)


def power(x: float, y: float) -> float:
    odd = math.isfinite(y) and y % 2 == 1
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and odd else math.inf
    except ValueError:
        if x != 0:
            return math.nan  # a root of a negative number
        return math.copysign(math.inf, x) if odd else math.inf


FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "add": _numbers(lambda x, y: x + y),
    "sub": _numbers(lambda x, y: x - y),
    "mul": _numbers(lambda x, y: x * y),
    "max": _numbers(maximum),
    "min": _numbers(minimum),
    "neg": _numbers(lambda x: -x),
    "abs": _numbers(abs),
    "floor": _numbers(lambda x: float(math.floor(x)) if math.isfinite(x) and x % 1 else x),
    "round": _numbers(lambda x: float(round(x)) if math.isfinite(x) and x % 1 else x),
    "div": _reals(divide),
    "pow": _reals(power),
    "exp": _reals(exponential),
    "exp2": _reals(lambda x: power(2.0, x)),
    "log": _reals(logarithm),
    "sqrt": _reals(lambda x: math.nan if x < 0 else math.sqrt(x)),
    "tanh": _reals(math.tanh),
    "erf": _reals(math.erf),
    "lt": _numbers(lambda x, y: x < y),
    "le": _numbers(lambda x, y: x <= y),
    "eq": _numbers(lambda x, y: x == y),
    "shift_right": lambda x, y: int(x) >> int(y),
    "bit_and": lambda x, y: int(x) & int(y),
    "ne": _numbers(lambda x, y: x != y),
    "and": lambda x, y: condition(x) and condition(y),
    "or": lambda x, y: condition(x) or condition(y),
    "not": lambda x: not condition(x),
    "select": lambda c, x, y: x if condition(c) else y,
}
