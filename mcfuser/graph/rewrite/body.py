"""The nodes that replace one ONNX node, written one by one with the types of their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.graph.constants import check_extents
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.read import described
from mcfuser.graph.rewrite.known import KnownValues
from mcfuser.graph.weights import OnnxArray

INT64_END = (1 << 63) - 1
"""The end of a slice that goes to the end of its dimension."""
NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Element types of floats whose sums are taken in float32."""


@dataclass
class NodeBody:
    """A node that is replaced, what is known of the values it reads, and its replacement so far.

    `opset` is the version of ONNX's operators in the model, at least graph.opset.OLDEST. `others`
    is the number of nodes that the model has beside these, and `bytes` are those of all constants
    that replacements added. With `integers`, integer weights stay integers; recurrent nodes
    within the limits `recurrences` stay where they can.
    """

    node: onnx.NodeProto
    known: KnownValues
    opset: int
    limits: ModelLimits
    others: int
    bytes: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    integers: bool = True
    recurrences: RecurrenceLimits = NO_RECURRENCES

    # --- what is asked of the node -----------------------------------------------------------

    def has(self, position: int) -> bool:
        """Whether the node has an input at a position."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def input(self, position: int) -> str | None:
        """The name of an input; None where there is none."""
        return self.node.input[position] if self.has(position) else None

    def read(self, position: int) -> str:
        """The name of an input. Raises ModelError where there is none."""
        name = self.input(position)
        if name is None:
            raise self.refusal(f"it lacks its input number {position}, counted from 0")
        return name

    def reads(self, count: int) -> list[str]:
        """The names of the first inputs. Raises ModelError where one is not there."""
        return [self.read(i) for i in range(count)]

    def wants(self, position: int) -> bool:
        """Whether the node has an output at a position."""
        return position < len(self.node.output) and bool(self.node.output[position])

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute's value; text is str."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                if isinstance(value, bytes):
                    return value.decode()
                if isinstance(value, list) and value and isinstance(value[0], bytes):
                    return [v.decode() for v in value]
                return value
        return default

    def shape(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a value. Raises ModelError where it is not known, or has not `rank`
        dimensions."""
        shape = self.known.shape(name)
        if shape is None:
            raise self.refusal(f"the shape of '{name}' is not known before the model runs")
        if rank is not None and len(shape) != rank:
            raise self.refusal(f"'{name}' has {len(shape)} dimensions, and should have {rank}")
        return shape

    def dtype(self, name: str) -> int:
        """A value's element type, a number of TensorProto. Raises ModelError where it is not
        known."""
        dtype = self.known.dtype(name)
        if dtype is None:
            raise self.refusal(f"the element type of '{name}' is not known")
        return dtype

    def array(self, name: str | None) -> OnnxArray | None:
        """The elements of a constant; None where the value is not known before the model runs."""
        return self.known.array(name) if name is not None else None

    def elements(self, position: int) -> OnnxArray:
        """The elements of an input that is a constant. Raises ModelError where it is none."""
        found = self.array(self.read(position))
        if found is None:
            raise self.refusal(f"its input '{self.read(position)}' is no constant")
        return found

    def window(self) -> dict[str, Any]:
        """The attributes of a convolution that the node has."""
        names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
        return {n: v for n in names if (v := self.attribute(n, None)) is not None}

    def items(self, position: int) -> Sequence[str]:
        """The tensors of an input that is a sequence. Raises ModelError where that is not
        known."""
        name = self.read(position)
        if name not in self.known.sequences:
            raise self.refusal(f"the tensors of the sequence '{name}' are known only at run time")
        return self.known.sequences[name]

    def refusal(self, why: str) -> ModelError:
        """The error that says why the node cannot be replaced."""
        return ModelError(f"{described(self.node, self.opset)} cannot be used: {why}")

    def reserve(self, count: int, what: str) -> None:
        """Raises ModelError where `count` nodes more are too many; `what` says whose they are."""
        whole = self.others + len(self.nodes) + count
        self.limits.check(
            "nodes",
            whole,
            f"the model has {{}} nodes with {described(self.node, self.opset)} {what}",
        )

    def room(self, *extents: int) -> None:
        """Raises ModelError where a value with these extents has too many elements."""
        check_extents(list(extents), f"a value of {described(self.node, self.opset)}", self.limits)

    # --- what is written -----------------------------------------------------------------------

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Writes an operator of ONNX's with one result; its name."""
        (result,) = self.ops(kind, inputs, 1, **attributes)
        return result

    def ops(self, kind: str, inputs: Sequence[str], results: int, **attributes: Any) -> list[str]:
        """Writes an operator of ONNX's; the names of its results."""
        self.reserve(1, "written out")
        stem = f"{self.node.name}/{kind}_{len(self.nodes)}"
        outputs = [self.known.fresh(f"{stem}_{i}" if i else stem) for i in range(results)]
        made: onnx.NodeProto = helper.make_node(kind, inputs, outputs, outputs[0], **attributes)
        self.nodes.append(made)
        self.known.add_node(made)
        for name in outputs:
            self.room(*self.known.shape(name) or ())
        return outputs

    def const(self, values: ArrayLike, dtype: int) -> str:
        """Writes a constant of an element type; its name."""
        name = self.known.fresh(f"{self.node.name}/constant_{len(self.constants)}")
        array = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(dtype))
        self.bytes += array.nbytes
        self.limits.check(
            "constant_bytes",
            self.bytes,
            f"the constants of what replaces operators have {{}} bytes, those of "
            f"{described(self.node, self.opset)} included",
        )
        tensor = numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        self.known.add_constant(tensor)
        return name

    def ints(self, values: Sequence[int]) -> str:
        """Writes a row of int64; its name."""
        return self.const(np.asarray(values, np.int64), TensorProto.INT64)

    def sequence(self, items: Sequence[str]) -> str:
        """Writes a sequence of tensors, which is no value at run time; its name."""
        self.known.listed += len(items)
        what = f"the sequences of the model, {described(self.node, self.opset)} included, list"
        self.limits.check("fields", self.known.listed, f"{what} {{}} tensors")
        name = self.known.fresh(f"{self.node.name}/sequence")
        self.known.sequences[name] = tuple(items)
        return name

    def like(self, value: float, other: str) -> str:
        """Writes a number of another value's type; its name."""
        return self.const(value, self.dtype(other))

    def scaled(self, x: str, factor: float) -> str:
        """x times a number."""
        return x if factor == 1 else self.op("Mul", x, self.like(factor, x))

    def cast(self, x: str, dtype: int) -> str:
        """x with another element type."""
        return x if self.dtype(x) == dtype else self.op("Cast", x, to=dtype)

    def widened(self, x: str) -> str:
        """x with at least the precision of float32."""
        return self.cast(x, TensorProto.FLOAT) if self.dtype(x) in NARROW else x

    def reshape(self, x: str, *extents: int) -> str:
        """x with another shape; one extent may be -1."""
        if -1 in extents:
            known = math.prod(e for e in extents if e != -1)
            whole = math.prod(self.shape(x))
            extents = tuple(whole // known if e == -1 else e for e in extents)
        return x if self.shape(x) == extents else self.op("Reshape", x, self.ints(extents))

    def transpose(self, x: str, *order: int) -> str:
        """x with its dimensions in another order."""
        return x if order == tuple(range(len(order))) else self.op("Transpose", x, perm=order)

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """x[start:stop:step] along an axis."""
        whole = step == 1 and start == 0 and stop >= self.shape(x)[axis]
        if whole:
            return x
        rows = (self.ints([v]) for v in (start, stop, axis, step))
        return self.op("Slice", x, *rows)

    def split(self, x: str, axis: int, parts: int) -> list[str]:
        """x in equal parts along an axis."""
        if parts == 1:
            return [x]
        extents = [self.shape(x)[axis] // parts] * parts
        if self.opset < 13:
            return self.ops("Split", [x], parts, axis=axis, split=extents)
        return self.ops("Split", [x, self.ints(extents)], parts, axis=axis)

    def concat(self, axis: int, *parts: str) -> str:
        """The parts joined along an axis; those that are known to be empty are left out."""
        held = [p for p in parts if (self.known.shape(p) or {axis: 1})[axis] != 0] or parts[:1]
        return held[0] if len(held) == 1 else self.op("Concat", *held, axis=axis)

    def mean(self, x: str, axes: Sequence[int]) -> str:
        """The mean over some axes, which stay with extent 1."""
        return self.reduced("ReduceMean", x, axes, kept=True)

    def reduced(self, kind: str, x: str, axes: Sequence[int], kept: bool = False) -> str:
        """A reduction of a `kind` other than ReduceSum over some axes, which are left out, or
        `kept` with extent 1."""
        if self.opset < 18:
            return self.op(kind, x, axes=list(axes), keepdims=int(kept))
        return self.op(kind, x, self.ints(axes), keepdims=int(kept))

    def sum(self, x: str, axis: int, kept: bool = False) -> str:
        """The sum over an axis, which is left out, or `kept` with extent 1."""
        if self.opset < 13:
            return self.op("ReduceSum", x, axes=[axis], keepdims=int(kept))
        return self.op("ReduceSum", x, self.ints([axis]), keepdims=int(kept))

    def softmax(self, x: str) -> str:
        """The softmax over the last axis."""
        return self.op("Softmax", x, axis=len(self.shape(x)) - 1)
