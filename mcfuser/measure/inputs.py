"""Random inputs for a chain: numbers for which its operators are defined, and that try them.

What a logarithm, a root, a power or a quotient takes is positive; whole numbers that are compared
with positions are positions. `varied` inputs differ in sign and scale, from one to the next and
within, and have zeros: kernels that are right for numbers around zero alone are not right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mcfuser.chain import WHOLE, Chain
from mcfuser.expr import Call, Cast, Const, Expr, Index, Read, walk
from mcfuser.space.reference import Array

SMALL = 8
"""Whole numbers that stand for no position lie between this, negative, and this."""
BLOCK = 64
"""Neighbouring elements of varied inputs that have one scale."""
ZEROS = 32
"""One in so many of these blocks is zero."""
FARTHEST = 2
"""Scales are powers of two up to this one, and down to its inverse."""

ValueRange = Literal["any", "positive", "share"]
"""Real numbers around zero, from 1 on, or between 0.1 and 0.9."""


@dataclass(frozen=True, slots=True)
class InputKind:
    """What one input may hold: reals of a range, around an `offset`, or, where its dtype is whole,
    positions up to `most`."""

    dtype: str
    range: ValueRange = "any"
    most: int | None = None
    offset: float = 0.0


def input_kinds(
    chain: Chain, offsets: Mapping[str, float], positive: ValueRange = "positive"
) -> dict[str, InputKind]:
    """The kind of every input. `positive` stands for what must not be negative: between 0 and 1
    where the chain takes the logarithm of 1 - x, say."""
    above = positives(chain)
    places = _places(chain)
    found = {}
    for n in chain.inputs:
        span: ValueRange = positive if n in above else "any"
        found[n] = InputKind(chain.tensor(n).dtype, span, places.get(n), offsets.get(n, 0.0))
    return found


def positives(chain: Chain) -> frozenset[str]:
    """Inputs that something is divided by, or of which a root, a power or a logarithm is taken:
    directly, through maps and through sums, but where an exponential or a square is between."""
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
    """The inputs whose sign may be that of an expression."""
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


def _places(chain: Chain) -> dict[str, int]:
    """Whole inputs that are compared with positions, and how many of these there are."""
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
    """How an input's numbers are drawn: those around zero of one sign only (or 0, of both), in
    blocks of scales that differ, or all alike."""

    sign: int = 0
    scale: float = 1.0
    blocks: bool = False


def draw_style(
    rng: np.random.Generator, kind: InputKind, varied: bool, sign: int | None = None
) -> DrawStyle:
    """The style of one input, with a sign of its own unless one is given; data far from zero stay
    there."""
    if not varied or kind.offset:
        return DrawStyle()
    drawn_sign, scale = int(rng.integers(-1, 2)), float(2.0 ** rng.integers(-1, 2))
    return DrawStyle(drawn_sign if sign is None else sign, scale, True)


def draw_values(rng: np.random.Generator, kind: InputKind, size: int, how: DrawStyle) -> Array:
    """So many random values."""
    if kind.dtype == "bool":
        return np.asarray(rng.random(size) < rng.choice([0.2, 0.5, 0.9] if how.blocks else [0.5]))
    if kind.dtype in WHOLE:
        if kind.most is not None:
            return rng.integers(0, kind.most + 1, size)
        low = 1 if kind.range != "any" else -SMALL
        return rng.integers(low, SMALL + 1, size)
    if kind.range == "share":
        return rng.uniform(0.1, 0.9, size).astype(np.float32)
    found = rng.standard_normal(size, np.float32) + np.float32(kind.offset)
    if kind.range == "positive":
        found = np.abs(found) + 1
    elif how.sign:
        found = np.abs(found) * np.float32(how.sign)
    if how.blocks:
        count = -(-size // BLOCK)
        scales = how.scale * 2.0 ** rng.integers(-FARTHEST, FARTHEST + 1, count)
        if kind.range == "any":
            scales = np.where(rng.integers(0, ZEROS, count) == 0, 0.0, scales)
        found = found * np.repeat(scales, BLOCK)[:size].astype(np.float32)
    return np.asarray(found)
