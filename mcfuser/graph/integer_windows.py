"""Windows of dequantized numbers: of the integers that these are made of.

A convolution multiplies integers less their zero point; scales multiply its sums. The zeros around
a picture are the zero point around the integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax

from mcfuser.expr import BOUNDS, Expr, call
from mcfuser.graph.attempt import Attempt, filled_number
from mcfuser.graph.condition import MASKED
from mcfuser.graph.dataflow import Dataflow, dtype, shape
from mcfuser.graph.layout import unpadded
from mcfuser.graph.operand import number, operand
from mcfuser.graph.views import LaidOutValue


@dataclass(frozen=True, slots=True)
class IntegerWindows:
    """A view of integers, the zero point that is subtracted from them, if any, and the factors that
    multiply the differences, each a single number."""

    view: LaidOutValue
    zero: relax.Expr | None
    factors: tuple[relax.Expr, ...]

    def difference(self, s: Attempt, element: Expr) -> Expr:
        """An element, or the largest of some, less the zero point."""
        if self.zero is None or filled_number(self.zero) == 0:
            return element
        return call("sub", element, _number(s, self.zero))

    def padded(self, number: float) -> IntegerWindows:
        """The same with this number around the integers."""
        padding = tuple(replace(p, number=number) for p in self.view.padding)
        return replace(self, view=replace(self.view, padding=padding))

    def scales(self, s: Attempt) -> list[Expr]:
        """The factors, as elements of inputs."""
        return [_number(s, f) for f in self.factors if filled_number(f) != 1]


def integer_windows(s: Attempt, view: LaidOutValue) -> IntegerWindows | None:
    """A view of dequantized numbers, and of zeros around them, as one of the integers; None where
    the chain must read real numbers: other ones, or with zeros that are no known integer."""
    found = _dequantized(s, view)
    if found is None or not view.padding:
        return found
    around = 0.0 if found.zero is None else filled_number(found.zero)
    if around is None or any(p.number for p in view.padding):
        return None
    return found.padded(float(around))


def integer_maxima(s: Attempt, view: LaidOutValue) -> IntegerWindows | None:
    """A view of dequantized numbers of which maxima are taken, as one of the integers: the largest
    of these is the largest of those where factors are positive. None where they may not be."""
    found = _dequantized(s, view)
    factors = () if found is None else [filled_number(f) for f in found.factors]
    if found is None or not all(f is not None and f > 0 for f in factors):
        return None
    if any(p.number > MASKED for p in view.padding):
        return None
    return found.padded(float(BOUNDS[dtype(found.view.value)][0]))


def has_integer_windows(flow: Dataflow, v: relax.Var) -> bool:
    """Whether a value reduces windows of dequantized numbers."""
    value = flow.values[v]
    windows = flow.operator(v).startswith(("nn.conv", "nn.max_pool"))
    return windows and unpadded(flow, value.args[0]) in flow.widened


def _dequantized(s: Attempt, view: LaidOutValue) -> IntegerWindows | None:
    """The integers that a value is made of, what is subtracted from them, and the factors of the
    difference; None where it is made in another way."""
    flow, factors, zero, value = s.flow, list[relax.Expr](), None, view.value
    while value in flow.widened and value not in s.closed:
        operator, (inner, *others) = flow.operator(value), flow.values[value].args
        if operator == "astype" and inner not in flow.widened:
            return IntegerWindows(replace(view, value=inner), zero, tuple(factors))
        if operator == "multiply" and zero is None:
            inner, other = (inner, *others) if inner in flow.widened else (*others, inner)
            factors.append(other)
        elif operator == "subtract" and zero is None and inner in flow.widened:
            (zero,) = others
        else:
            return None
        value = inner
    return None


def _number(s: Attempt, value: relax.Expr) -> Expr:
    """A single number, read."""
    found = number(s, value)
    return found if found is not None else operand(s, value, [[] for _ in shape(value)])
