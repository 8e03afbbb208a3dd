"""The bindings of a Relax function as a graph: who computes a value, and who reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from mcfuser.graph.scalar import ELEMENTWISE

ValueKind = Literal["product", "view", "softmax", "elementwise", "other"]
# The same elements in another order or shape: a position in one is a position in the other.
BIJECTIVE = frozenset(
    f"relax.{name}" for name in ("reshape", "flatten", "expand_dims", "squeeze", "permute_dims")
)


@dataclass(frozen=True)
class Dataflow:
    """Every binding of a function in order; `outputs` are the values that leave it."""

    order: tuple[relax.Var, ...]
    values: Mapping[relax.Var, relax.Expr]
    readers: Mapping[relax.Var, tuple[relax.Var, ...]]
    outputs: frozenset[relax.Var]

    @cached_property
    def position(self) -> dict[relax.Var, int]:
        return {v: i for i, v in enumerate(self.order)}

    @cached_property
    def kinds(self) -> dict[relax.Var, ValueKind]:
        return {v: kind(v, self.values[v]) for v in self.order}

    @property
    def products(self) -> tuple[relax.Var, ...]:
        return tuple(v for v in self.order if self.kinds[v] == "product")

    def operator(self, v: relax.Var) -> str:
        """What computes a value, for people."""
        value = self.values.get(v)
        if isinstance(value, relax.Call) and isinstance(value.op, ir.Op):
            return str(value.op.name).removeprefix("relax.")
        return "tuple" if isinstance(value, relax.Tuple) else type(value).__name__


def dataflow(function: relax.Function) -> Dataflow:
    """The graph of a function's body."""
    order: list[relax.Var] = []
    values: dict[relax.Var, relax.Expr] = {}
    readers: dict[relax.Var, list[relax.Var]] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            order.append(binding.var)
            values[binding.var] = binding.value
            for v in sources(binding.value):
                readers.setdefault(v, []).append(binding.var)
    outputs = set(sources(function.body.body))
    outputs |= {v for o in outputs if isinstance(values.get(o), relax.Tuple)
                for v in sources(values[o])}  # fmt: skip
    readings = {v: tuple(rs) for v, rs in readers.items()}
    return Dataflow(tuple(order), values, readings, frozenset(outputs))


def sources(value: relax.Expr) -> tuple[relax.Var, ...]:
    """The variables that an expression reads, each once, in order."""
    if isinstance(value, relax.Var):
        return (value,)
    if isinstance(value, relax.Call) and all(isinstance(a, relax.Var) for a in value.args):
        return tuple(dict.fromkeys(value.args))
    return tuple(relax.analysis.free_vars(value))


def kind(v: relax.Var, value: relax.Expr) -> ValueKind:
    if extents(v) is None or not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return "other"
    name = value.op.name
    if name == "relax.matmul":
        return "product"
    if name in BIJECTIVE:
        return "view"
    if name == "relax.nn.softmax":
        return "softmax"
    return "elementwise" if name in ELEMENTWISE else "other"


def extents(value: relax.Expr) -> tuple[int, ...] | None:
    """A tensor's shape where every extent is a number."""
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    if not all(isinstance(d, tirx.IntImm) for d in ty.shape.values):
        return None
    return tuple(int(d) for d in ty.shape.values)


def shape(value: relax.Expr) -> tuple[int, ...]:
    """A tensor's shape, known to be fixed."""
    found = extents(value)
    assert found is not None
    return found


def dtype(value: relax.Expr) -> str:
    return str(value.ty.dtype)


def size(value: relax.Expr) -> int:
    return math.prod(shape(value))


def array(value: relax.Expr) -> NDArray[np.generic] | None:
    """The array of a constant tensor."""
    if isinstance(value, ir.GenericConst) and isinstance(value.ty, relax.TensorType):
        return np.asarray(value.value.numpy())
    return None


def reach(flow: Dataflow, start: relax.Var, through: Iterable[ValueKind]) -> tuple[relax.Var, ...]:
    """The values of as many elements computed from `start` by operators of these kinds alone.

    In the order of the bindings; `start` comes first.
    """
    allowed, found = set(through), {start}
    frontier = [start]
    while frontier:
        for v in flow.readers.get(frontier.pop(), ()):
            if v not in found and flow.kinds[v] in allowed and size(v) == size(start):
                found.add(v)
                frontier.append(v)
    return tuple(sorted(found, key=flow.position.__getitem__))


def between(flow: Dataflow, last: relax.Var, reached: Iterable[relax.Var]) -> tuple[relax.Var, ...]:
    """`last` and every value of `reached` that it is computed from, in order."""
    inside, found = set(reached), {last}
    frontier = [last]
    while frontier:
        for v in sources(flow.values[frontier.pop()]):
            if v in inside and v not in found:
                found.add(v)
                frontier.append(v)
    return tuple(sorted(found, key=flow.position.__getitem__))
