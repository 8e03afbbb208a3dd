"""Random inputs for a chain, for which its operators are defined.

Inputs that logarithms, roots, powers or divisions take are positive; integers that are compared
with positions along an axis are such positions. Constants that products sum over are small, as a
model's weights are: results then have the magnitude of what is multiplied by them, and narrow types
hold them. `varied` inputs differ in sign and scale, between
each other and within one, and have zeros: a kernel may be right on small numbers around zero only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mcfuser.chain import WHOLE, Chain
from mcfuser.expr import NARROW, Call, Cast, Const, Expr, Index, Read, walk
from mcfuser.space.reference import Array

SMALL = 8
"""Integers that are not positions are at most this in magnitude."""
BLOCK = 64
"""The number of neighbouring elements of a varied input that have one scale."""
ZEROS = 32
"""Of so many such blocks one is zero, on average."""
LARGEST_SCALE = 2
"""The exponent of the largest scale, a power of two; that of the smallest one is its negative."""

DrawRange = Literal["any", "positive", "share"]
"""Where floating-point inputs lie: around zero, above 1, or between 0.1 and 0.9."""


@dataclass(frozen=True, slots=True)
class InputKind:
    """What values one input may have.

    Floating-point values lie in `range`, around `offset`, and spread by the order of `scale`.
    Integers are positions from 0 to `most`, or small numbers if that is None; those of a narrow
    type are any that it has.
    """

    dtype: str
    range: DrawRange = "any"
    most: int | None = None
    offset: float = 0.0
    scale: float = 1.0


def input_kinds(
    chain: Chain, offsets: Mapping[str, float], positive: DrawRange = "positive"
) -> dict[str, InputKind]:
    """The kind of every input, by name.

    `positive` is the range of those that must not be negative: "share" suits a chain that takes the
    logarithm of 1 - x, for example.
    """
    must_be_positive = positives(chain)
    extents, depths = _compared_positions(chain), _depths(chain)
    kinds = {}
    for n in chain.inputs:
        span: DrawRange = positive if n in must_be_positive else "any"
        dtype, offset = chain.tensor(n).dtype, offsets.get(n, 0.0)
        scale = 1.0 if span != "any" or offset else depths.get(n, 1) ** -0.5
        kinds[n] = InputKind(dtype, span, extents.get(n), offset, scale)
    return kinds


def _depths(chain: Chain) -> dict[str, int]:
    """The constants that are operands of products, and over how many elements these sum."""
    found: dict[str, int] = {}
    for o in chain.operators:
        if (roles := o.product) is not None:
            for n in (roles.left.tensor, roles.right.tensor):
                if n in chain.inputs and chain.tensor(n).constant:
                    found[n] = math.prod(chain.size(a) for a in roles.depth)
    return found


def positives(chain: Chain) -> frozenset[str]:
    """The inputs that must not be negative or zero: divisors, and arguments of roots, powers and
    logarithms.

    Maps and sums in between are followed, but not an exponential, an absolute value or a square:
    these are positive whatever their arguments are.
    """
    found: set[str] = set()
    for o in chain.operators:
        for e in walk(o.body):
            if isinstance(e, Call) and e.op in ("log", "sqrt"):
                found |= set(_signed(chain, e.args[0]))
            elif isinstance(e, Call) and e.op == "div":
                found |= set(_signed(chain, e.args[1]))
            elif isinstance(e, Call) and e.op == "pow" and not _whole_power(e):
                found |= set(_signed(chain, e.args[0]))
    return frozenset(found)


def _whole_power(e: Call) -> bool:
    power = e.args[1]
    return isinstance(power, Const) and power.value == int(power.value) and power.value >= 0


def _signed(chain: Chain, e: Expr) -> Iterator[str]:
    """The inputs on whose signs the sign of an expression may depend."""
    if isinstance(e, Read) and e.tensor in chain.inputs:
        yield e.tensor
    elif isinstance(e, Read):
        yield from _signed(chain, chain.operator(e.tensor).body)
    elif isinstance(e, Cast):
        yield from _signed(chain, e.arg)
    elif isinstance(e, Call) and e.op not in ("exp", "exp2", "abs", "lt", "le", "eq", "ne"):
        square = e.op == "mul" and e.args[0] == e.args[1]
        if not square and not (e.op == "pow" and e.args[1] == Const(2.0)):
            for a in e.args[e.op == "select" :]:
                yield from _signed(chain, a)


def _compared_positions(chain: Chain) -> dict[str, int]:
    """The inputs that are compared with positions along an axis, and the largest such extent."""
    found: dict[str, int] = {}
    for o in chain.operators:
        for e in (o.body, o.domain):
            for test in walk(e) if e is not None else ():
                if not isinstance(test, Call) or test.op not in ("lt", "le", "eq", "ne"):
                    continue
                nodes = [*walk(test)]
                most = max((chain.size(n.axis) for n in nodes if isinstance(n, Index)), default=0)
                for n in nodes:
                    if isinstance(n, Read) and n.tensor in chain.inputs and most:
                        found[n.tensor] = max(found.get(n.tensor, 0), most)
    return found


# --- numbers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrawStyle:
    """How an input's values are drawn.

    Values around zero are given a `sign` of 1 or -1, or keep their own if it is 0. With `blocks`,
    each BLOCK of values has a scale of its own, around `scale`.
    """

    sign: int = 0
    scale: float = 1.0
    blocks: bool = False


def draw_style(
    rng: np.random.Generator, kind: InputKind, varied: bool, sign: int | None = None
) -> DrawStyle:
    """The style of one input: a random one if `varied`, with the given sign if there is one.

    An input with an offset is never varied: it stays far from zero.
    """
    if not varied or kind.offset:
        return DrawStyle()
    drawn_sign, scale = int(rng.integers(-1, 2)), float(2.0 ** rng.integers(-1, 2))
    return DrawStyle(drawn_sign if sign is None else sign, scale, True)


def draw_values(rng: np.random.Generator, kind: InputKind, size: int, how: DrawStyle) -> Array:
    """`size` random values of a kind."""
    if kind.dtype == "bool":
        return np.asarray(rng.random(size) < rng.choice([0.2, 0.5, 0.9] if how.blocks else [0.5]))
    if kind.dtype in (*WHOLE, *NARROW):
        if kind.most is not None:
            return rng.integers(0, kind.most + 1, size)
        if kind.dtype in NARROW:
            whole = np.iinfo(kind.dtype)
            return rng.integers(1 if kind.range != "any" else whole.min, whole.max + 1, size)
        low = 1 if kind.range != "any" else -SMALL
        return rng.integers(low, SMALL + 1, size)
    if kind.range == "share":
        return rng.uniform(0.1, 0.9, size).astype(np.float32)
    values = rng.standard_normal(size, np.float32) * np.float32(kind.scale)
    values += np.float32(kind.offset)
    if kind.range == "positive":
        values = np.abs(values) + 1
    elif how.sign:
        values = np.abs(values) * np.float32(how.sign)
    if how.blocks:
        count = -(-size // BLOCK)
        scales = how.scale * 2.0 ** rng.integers(-LARGEST_SCALE, LARGEST_SCALE + 1, count)
        if kind.range == "any":
            scales = np.where(rng.integers(0, ZEROS, count) == 0, 0.0, scales)
        values = values * np.repeat(scales, BLOCK)[:size].astype(np.float32)
    return np.asarray(values)
