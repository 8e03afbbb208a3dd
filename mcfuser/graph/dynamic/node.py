"""One node of a model as the rules of padding see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from mcfuser.errors import ModelError
from mcfuser.graph.dynamic.layout import (
    Factor,
    Layout,
    Operand,
    PaddedDimension,
    Sign,
    all_zero,
    is_dynamic,
)
from mcfuser.graph.dynamic.length import Symbol
from mcfuser.graph.dynamic.padded import PaddedGraph

Numbers = np.ndarray[Any, Any]


@dataclass
class PaddedNode:
    """A node, and the graph into which its rule writes what computes it in a bucket.

    `produce` gives the operand of a value of the model, and writes it first where that is needed.
    A node of a value that depends on shapes alone is written only where the value differs between
    shapes: then it is `computed_late`, under other names.
    """

    graph: PaddedGraph
    node: onnx.NodeProto
    produce: Callable[[str], Operand]
    computed_late: bool = False

    # --- what is asked of the node ----------------------------------------------------------------

    def has(self, position: int) -> bool:
        """Whether the node has an input at a position."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def operand(self, position: int) -> Operand:
        """An input. Raises ModelError where it cannot be computed in a bucket."""
        return self.produce(self.node.input[position])

    def operands(self) -> list[Operand]:
        """All inputs."""
        return [self.produce(name) for name in self.node.input if name]

    def numbers(self, position: int, what: str) -> list[Numbers] | None:
        """The elements at every point of an input that gives a shape or a position; None where the
        node has no such input. Raises ModelError where they depend on the model's inputs."""
        if not self.has(position):
            return None
        arrays = self.graph.arrays(self.node.input[position])
        if arrays is None:
            raise self.refusal(f"its {what} depend on elements of the inputs")
        return arrays

    def number(self, position: int, what: str) -> Numbers | None:
        """The elements of such an input, which are the same at every point."""
        arrays = self.numbers(position, what)
        if arrays is None:
            return None
        if any(not np.array_equal(a, arrays[0]) for a in arrays):
            raise self.refusal(f"its {what} depend on the extents")
        return arrays[0]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value; text is str."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def dtype(self, position: int) -> int:
        """The element type of an input."""
        return self.graph.upper.dtype(self.node.input[position])

    def axes(self, position: int, rank: int) -> list[int]:
        """The axes of an attribute, or of the input at a position, counted from 0; all where none
        are given."""
        given = self.attribute("axes")
        if given is None and (array := self.number(position, "axes")) is not None:
            given = array.tolist()
        if not given:
            return list(range(rank))
        return [int(a) % rank for a in given]

    def result_layout(self, output: int = 0) -> Layout:
        """The layout of a result each of whose dimensions is one extent. Raises ModelError where
        its shape is not known."""
        name = self.node.output[output]
        layout = self.graph.layout(name)
        if layout is None:
            raise self.refusal(f"the shape of its result '{name}' depends on elements")
        return layout

    # --- what is written --------------------------------------------------------------------------

    def write(self, inputs: Sequence[str], **changed: Any) -> list[str]:
        """Writes the node with other inputs, and with some attributes changed; the names of its
        results."""
        made = onnx.NodeProto()
        made.CopyFrom(self.node)
        del made.input[:]
        made.input.extend(inputs)
        kept = [a for a in made.attribute if a.name not in changed]
        del made.attribute[:]
        made.attribute.extend(kept)
        made.attribute.extend(
            helper.make_attribute(n, v) for n, v in changed.items() if v is not None
        )
        if self.computed_late:
            names = [self.graph.fresh(n) if n else "" for n in self.node.output]
            made.name = names[0]
            del made.output[:]
            made.output.extend(names)
        self.graph.nodes.append(made)
        return list(made.output)

    def same(self, *operands: Operand) -> list[str]:
        """Writes the node on these operands, in place of its first inputs; the names of its
        results."""
        rest = list(self.node.input[len(operands) :])
        return self.write([*(o.name for o in operands), *rest])

    def result(
        self, name: str, layout: Layout, finite: bool = False, sign: Sign = "any"
    ) -> list[Operand]:
        """One result."""
        return [Operand(name, layout, finite, sign)]

    def counted(self, output: int, extents: Factor, count: str) -> None:
        """Notes that a row of one int64 holds an extent that the node's elements decide."""
        symbol = self.graph.found[self.node.output[output]]
        self.graph.inputs[symbol] = count
        self.graph.lengths[extents.extents] = Symbol(symbol)

    def masked(self, x: Operand, position: int, dims: Sequence[int], fill: float) -> Operand:
        """The operand at a position with `fill` in the padded positions of some dimensions, where
        it has such positions."""
        dynamic = [d for d in dims if is_dynamic(x.layout[d])]
        if fill == 0:
            dynamic = [d for d in dynamic if not all_zero(x.layout[d])]
        if not dynamic:
            return x
        return self.graph.masked(x, dynamic, fill, self.dtype(position), self.node)

    def single(self, x: Operand, *dims: int) -> Operand:
        """The operand with at most one run-time extent in each of these dimensions."""
        for d in dims:
            x = self.graph.compacted(x, d % len(x.layout), self.node)
        return x

    # --- refusals ---------------------------------------------------------------------------------

    def refusal(self, why: str) -> ModelError:
        return self.graph.refusal(self.node, why)

    def static(self, x: Operand, dims: Sequence[int], why: str) -> None:
        """Raises ModelError where one of these dimensions of an operand has padded positions."""
        for d in dims:
            if is_dynamic(x.layout[d]):
                raise self.refusal(f"dimension {d} of '{x.name}', {why}, has such an extent")


def only(dim: PaddedDimension) -> Factor | None:
    """The factor of a dimension that is one extent; None of any other."""
    return dim[0] if len(dim) == 1 else None
