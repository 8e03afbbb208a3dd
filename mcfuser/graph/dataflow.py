"""The dataflow graph of a Relax function: the expression and the readers of each value."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from mcfuser.chain import ProductPrecision
from mcfuser.chain.recurrence import is_recurrence
from mcfuser.expr import NARROW
from mcfuser.graph.matching import calls
from mcfuser.graph.scalar import ELEMENTWISE
from mcfuser.graph.tensors import array_over, tensor_over
from mcfuser.graph.weights import aligned

ValueKind = Literal[
    "product", "view", "slice", "softmax", "norm", "reduction", "elementwise", "concatenation",
    "broadcast", "constant", "other",
]  # fmt: skip
MOVING: tuple[ValueKind, ...] = ("view", "slice", "broadcast")
"""What moves elements and computes nothing, and is followed where it is read."""
# Views with the same elements in another order or shape: positions correspond one to one.
BIJECTIVE = frozenset(
    f"relax.{name}" for name in ("reshape", "flatten", "expand_dims", "squeeze", "permute_dims")
)
_WIDENING = tuple(f"relax.{op}" for op in ("astype", "add", "subtract", "multiply", "divide"))
FLOATS = ("float32", "float16", "bfloat16")
"""The types of the values of chains; all but the first are computed in float32."""
MANY = 8
"""Slices of one value that are alike from which on each is copied: one kernel takes them all."""
SMALL = 1 << 12
"""Elements of such a slice at most: a CPU copies them in about a microsecond."""
RECURRENCE = "recurrence"
"""The operator of a value that a call for a whole sequence computes (graph.recurrence)."""
_LITERALS = (ir.Constant, relax.ShapeExpr)
_UNNAMED = re.compile(r"(lv|gv)\d*(_\d+)?")
_KINDS: Mapping[str, ValueKind] = {
    "relax.matmul": "product",
    "relax.nn.conv1d": "product",
    "relax.nn.conv2d": "product",
    "relax.nn.conv3d": "product",
    "relax.nn.softmax": "softmax",
    "relax.nn.log_softmax": "softmax",
    "relax.nn.layer_norm": "norm",
    "relax.nn.rms_norm": "norm",
    "relax.sum": "reduction",
    "relax.mean": "reduction",
    "relax.max": "reduction",
    "relax.min": "reduction",
    **{
        f"relax.nn.{kind}_pool{rank}d": "reduction" for kind in ("max", "avg") for rank in (1, 2, 3)
    },
    "relax.concat": "concatenation",
    "relax.broadcast_to": "broadcast",
    "relax.strided_slice": "slice",
}


@dataclass(frozen=True)
class Dataflow:
    """The values of a function in the order of their bindings.

    `values` has the expression of each one, `readers` the values that read it, in order, and
    `outputs` are the results of the function. Kernels multiply small `integers` as such, or have no
    use for them. Those of `channels_last` are stored so, if at all (mcfuser.graph.layout), and with
    `depth_last` weights are stored along the depth of their products (mcfuser.chain.deep), whose
    float32 operands are rounded to `precision` at most. Where it `copies`, small slices are copied
    rather than read by a kernel for each (`steps`), and so are numbers that are broadcast.
    """

    order: tuple[relax.Var, ...]
    values: Mapping[relax.Var, relax.Expr]
    readers: Mapping[relax.Var, tuple[relax.Var, ...]]
    outputs: frozenset[relax.Var]
    integers: bool = True
    channels_last: frozenset[relax.Var] = frozenset()
    depth_last: bool = False
    precision: ProductPrecision = "float32"
    copies: bool = True

    @cached_property
    def position(self) -> dict[relax.Var, int]:
        return {v: i for i, v in enumerate(self.order)}

    @cached_property
    def kinds(self) -> dict[relax.Var, ValueKind]:
        """The kind of each value; that of one that is computed from constants alone, as scaled
        integer weights are, is "constant"."""
        found: dict[relax.Var, ValueKind] = {}
        fixed = set[relax.Var]()
        for v in self.order:
            found[v] = kind(v, self.values[v])
            if found[v] in ("elementwise", "view") and is_fixed(self.values[v], fixed):
                fixed.add(v)
                found[v] = "constant"
        return found

    @cached_property
    def constants(self) -> frozenset[relax.Var]:
        """The values that are computed from constants alone."""
        return frozenset(v for v in self.order if self.kinds[v] == "constant")

    @cached_property
    def widened(self) -> frozenset[relax.Var]:
        """The real values that are made of narrow integers and of single numbers, by arithmetic
        that is quicker than to read them, and views of these: dequantized ones, where kernels
        multiply integers."""
        found = set[relax.Var]()
        for v in self.order if self.integers else ():
            value = self.values[v]
            if self.kinds[v] == "view" and value.args[0] in found:
                found.add(v)
            if self.kinds[v] != "elementwise" or value.op.name not in _WIDENING:
                continue
            made = any(a in found for a in value.args)
            others = (a for a in value.args if a not in found)
            computed = made and dtype(v) in FLOATS and all(_is_number(a) for a in others)
            casts = value.op.name == "relax.astype" and dtype(value.args[0]) in NARROW
            if casts or computed:
                found.add(v)
        return frozenset(found)

    @cached_property
    def steps(self) -> frozenset[relax.Var]:
        """Small slices at fixed positions of values that have MANY alike, as a sequence has whose
        steps an exporter has written out. What computes with one computes with each of them, if it
        does not know which one it reads."""
        alike: dict[tuple[relax.Expr, tuple[int, ...]], list[relax.Var]] = {}
        for v in self.order if self.copies else ():
            value, fixed = self.values[v], extents(v)
            if fixed is not None and self.operator(v) in ("strided_slice", "take"):
                alike.setdefault((value.args[0], fixed), []).append(v)
        return frozenset(
            v
            for slices in alike.values()
            if len(slices) >= MANY and size(slices[0]) <= SMALL
            for v in slices
        )

    @property
    def products(self) -> tuple[relax.Var, ...]:
        return tuple(v for v in self.order if self.kinds[v] == "product")

    def name(self, v: relax.Var) -> str:
        """The name of a value, for messages; of one that the importer has not named, that of the
        value computed from it alone, if there is one."""
        named = v
        while _UNNAMED.fullmatch(named.name):
            readers = self.readers.get(named, ())
            if len(readers) != 1 or readers[0] not in self.values:
                return str(v.name)
            (named,) = readers
        return str(named.name)

    def operator(self, v: relax.Var) -> str:
        """The name of the operator that computes a value, for messages."""
        return operator_name(self.values.get(v))


def operator_name(value: relax.Expr | None) -> str:
    """The name of the operator of an expression."""
    if isinstance(value, relax.Call) and isinstance(value.op, ir.Op):
        name = str(value.op.name).removeprefix("relax.")
        called = name == "call_dps_packed" and is_recurrence(value.args[0].global_symbol)
        return RECURRENCE if called else name
    return "tuple" if isinstance(value, relax.Tuple) else type(value).__name__


def dataflow(function: relax.Function, integers: bool = True, copies: bool = True) -> Dataflow:
    """The graph of a function's body; `integers` tells whether kernels multiply them as such, and
    `copies` whether small slices are copied."""
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
    for out in tuple(outputs):
        if isinstance(values.get(out), relax.Tuple):
            outputs.update(sources(values[out]))
    readings = {v: tuple(rs) for v, rs in readers.items()}
    results = frozenset(outputs)
    return Dataflow(tuple(order), values, readings, results, integers, copies=copies)


def with_blocks(function: relax.Function, blocks: Sequence[relax.BindingBlock]) -> relax.Function:
    """The function with other bindings of the values that it returns."""
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def sources(value: relax.Expr) -> tuple[relax.Var, ...]:
    """The variables that an expression reads, each once, in order."""
    if isinstance(value, relax.Var):
        return (value,)
    if isinstance(value, relax.Call) and all(isinstance(a, relax.Var) for a in value.args):
        return tuple(dict.fromkeys(value.args))
    return tuple(relax.analysis.free_vars(value))


def _is_number(value: relax.Expr) -> bool:
    """Whether a value is a single real number, whether it is known or not."""
    if not isinstance(value, (relax.Var, ir.GenericConst)) or extents(value) is None:
        return False
    return size(value) == 1 and dtype(value) in FLOATS


def is_fixed(value: relax.Expr, fixed: Container[relax.Var]) -> bool:
    """Whether an expression is computed from constants and from the values `fixed` alone."""
    if isinstance(value, _LITERALS):
        return True
    if isinstance(value, relax.Var):
        return value in fixed
    if isinstance(value, relax.Tuple):
        return all(is_fixed(field, fixed) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return is_fixed(value.tuple_value, fixed)
    if isinstance(value, relax.Call):
        return isinstance(value.op, ir.Op) and all(is_fixed(a, fixed) for a in value.args)
    return False


def kind(v: relax.Var, value: relax.Expr) -> ValueKind:
    """The kind of a value; "other" where its shape is not fixed or its operator is not known."""
    if extents(v) is None or not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return "other"
    name = value.op.name
    if name in BIJECTIVE:
        return "view"
    if name in _KINDS:
        return _KINDS[name]
    return "elementwise" if name in ELEMENTWISE else "other"


def extents(value: relax.Expr) -> tuple[int, ...] | None:
    """A tensor's shape; None where some extent is not a number."""
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    found = ty.shape.values[:]  # a list, in a third of the time that TVM's iterator takes
    return tuple(d.value for d in found) if all(isinstance(d, tirx.IntImm) for d in found) else None


def shape(value: relax.Expr) -> tuple[int, ...]:
    """The shape of a tensor whose shape is known to be fixed."""
    fixed = extents(value)
    assert fixed is not None
    return fixed


def dtype(value: relax.Expr) -> str:
    """The name of a tensor's element type."""
    return str(value.ty.dtype)


def size(value: relax.Expr) -> int:
    """The number of elements of a tensor."""
    return math.prod(shape(value))


def array(value: relax.Expr) -> NDArray[np.generic] | None:
    """The read-only array of a constant tensor; None for any other expression."""
    if isinstance(value, ir.GenericConst) and isinstance(value.ty, relax.TensorType):
        return array_over(value.value)
    return None


def part_of(constant: relax.Expr, axis: int, begin: int, end: int) -> relax.Expr:
    """Some positions of a constant tensor along a dimension."""
    elements = array(constant)
    assert elements is not None
    part = elements.swapaxes(0, axis)[begin:end].swapaxes(0, axis)
    return relax.const(tensor_over(aligned(part)))


def weight_count(function: relax.Function) -> int:
    """The elements of all constants that a function's calls read, each of them once."""
    found: dict[tuple[int, int], int] = {}
    for _, call in calls(function.body):
        for a in call.args:
            for x in a.fields if isinstance(a, relax.Tuple) else (a,):
                if (elements := array(x)) is not None:
                    found[elements.ctypes.data, elements.nbytes] = elements.size
    return sum(found.values())


def reachable(
    flow: Dataflow, start: relax.Var, through: Iterable[ValueKind]
) -> tuple[relax.Var, ...]:
    """`start` and the values computed from it by operators of the kinds `through` alone, in the
    order of the bindings; only those with as many elements as `start`."""
    allowed, reached = set(through), {start}
    frontier = [start]
    while frontier:
        for v in flow.readers.get(frontier.pop(), ()):
            if v not in reached and flow.kinds[v] in allowed and size(v) == size(start):
                reached.add(v)
                frontier.append(v)
    return tuple(sorted(reached, key=flow.position.__getitem__))


def computed_from(
    flow: Dataflow, last: relax.Var, reached: Iterable[relax.Var]
) -> tuple[relax.Var, ...]:
    """`last` and the values of `reached` that it is computed from, in the order of the bindings."""
    allowed, members = set(reached), {last}
    frontier = [last]
    while frontier:
        for v in sources(flow.values[frontier.pop()]):
            if v in allowed and v not in members:
                members.add(v)
                frontier.append(v)
    return tuple(sorted(members, key=flow.position.__getitem__))
