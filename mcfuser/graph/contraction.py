"""Rewrites einsums as matrix products, products of elements, and sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from string import ascii_letters

import numpy as np
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from mcfuser.graph.read import opset
from mcfuser.graph.rewrite.body import NARROW

DOTS = "..."
_AXES_ARE_INPUTS = 13
"""The opset from which on a ReduceSum has its axes as an input."""


def einsums(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every einsum replaced by batched matrix products, products of elements, and
    sums, of two operands at a time.

    An einsum whose shapes are not known, or that takes a diagonal, stays as it is. What is not one
    matrix product is computed in float32 where its operands are narrower.
    """
    if not any(node.op_type == "Einsum" for node in proto.graph.node):
        return proto
    typed = onnx.shape_inference.infer_shapes(proto)
    shapes, types, version = _shapes(typed), _types(typed), opset(proto)
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        if node.op_type != "Einsum":
            nodes.append(node)
            continue
        for one in _wide(node, shapes, types):
            if one.op_type == "Cast" and one.input[0] in shapes:
                shapes[one.output[0]] = shapes[one.input[0]]
            steps, constants = _replaced(one, shapes, version)
            nodes += steps
            made.graph.initializer.extend(constants)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    graph = proto.graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.dim_value > 0 for d in dims):
            shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    graph = proto.graph
    types = {t.name: t.data_type for t in graph.initializer}
    values = (*graph.input, *graph.value_info, *graph.output)
    return types | {v.name: v.type.tensor_type.elem_type for v in values}


@dataclass(frozen=True)
class _Sum:
    """An einsum without diagonals: what each operand's dimensions are called, and the result's.
    Those that are `stretched` have dimensions of extent 1 besides, for letters that others have."""

    operands: tuple[str, ...]
    out: str
    sizes: Mapping[str, int]
    stretched: frozenset[int] = frozenset()

    def lone(self, i: int) -> str:
        """The letters that only an operand has: it is summed over them first."""
        others = {*self.out}.union(*self.operands[:i], *self.operands[i + 1 :])
        return "".join(x for x in self.operands[i] if x not in others)

    @property
    def depth(self) -> list[str]:
        """The letters that two operands share, and that are summed over."""
        a, b = self.operands
        return [x for x in a if x in b and x not in self.out]

    def extents(self, letters: Iterable[str]) -> list[int]:
        return [self.sizes[x] for x in letters]


def _summed(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> _Sum | None:
    """None where a shape is not known, or a letter stands twice."""
    words = "".join(node.attribute[0].s.decode().split())
    if any(i not in shapes for i in node.input):
        return None
    given = [shapes[name] for name in node.input]
    if (spelled := _spelled(words, [len(extents) for extents in given])) is None:
        return None
    operands, out = spelled
    if any(len(set(w)) != len(w) for w in (*operands, out)):
        return None
    sizes: dict[str, int] = {}
    for letters, extents in zip(operands, given, strict=True):
        for letter, extent in zip(letters, extents, strict=True):
            if extent != sizes.setdefault(letter, extent) and 1 not in (extent, sizes[letter]):
                return None
            sizes[letter] = max(sizes[letter], extent)
    left = tuple(
        "".join(x for x, extent in zip(letters, extents, strict=True) if extent == sizes[x])
        for letters, extents in zip(operands, given, strict=True)
    )
    stretched = frozenset(i for i, w in enumerate(operands) if w != left[i])
    return _Sum(left, out, sizes, stretched) if {*out} <= sizes.keys() else None


def _spelled(words: str, ranks: Sequence[int]) -> tuple[tuple[str, ...], str] | None:
    """What the dimensions of operands of these ranks are called, and the result's: with letters of
    their own for those that an ellipsis stands for, and the result as it is where `words` leave it
    out. None where the words do not fit."""
    inputs, arrow, out = words.partition("->")
    operands = inputs.split(",")
    if len(operands) != len(ranks):
        return None
    if not arrow:
        once = sorted(x for x in {*inputs} if x.isalpha() and inputs.count(x) == 1)
        out = DOTS * (DOTS in inputs) + "".join(once)
    hidden = [n - len(w.replace(DOTS, "")) for w, n in zip(operands, ranks, strict=True)]
    if any(n < 0 or (n > 0 and DOTS not in w) for w, n in zip(operands, hidden, strict=True)):
        return None
    most = max(hidden)
    free = [x for x in ascii_letters if x not in words][:most]
    if len(free) < most or (most > 0 and DOTS not in out):
        return None
    every = "".join(free)
    named = [w.replace(DOTS, every[most - n :]) for w, n in zip(operands, hidden, strict=True)]
    named.append(out.replace(DOTS, every))
    return (tuple(named[:-1]), named[-1]) if all(w.isalpha() for w in named if w) else None


def _wide(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """An einsum of narrow floats that is no matrix product, with its operands and its result cast;
    others as they are."""
    kind, result = types.get(node.input[0]), node.output[0]
    found = _summed(node, shapes)
    if kind not in NARROW or (found is not None and _is_product(found)):
        return [node]
    wide = [f"{result}_wide{i}" for i in range(len(node.input))]
    casts = [
        helper.make_node("Cast", [x], [y], f"{y}_cast", to=TensorProto.FLOAT)
        for x, y in zip(node.input, wide, strict=True)
    ]
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:], made.output[:] = wide, [f"{result}_sums"]
    return [
        *casts,
        made,
        helper.make_node("Cast", made.output, [result], f"{result}_cast", to=kind),
    ]


def _is_product(found: _Sum) -> bool:
    """Whether an einsum is one matrix product."""
    two = len(found.operands) == 2 and not found.lone(0) and not found.lone(1)
    return two and bool(found.depth)


class _Steps:
    """The nodes and constants that replace an einsum, and what they are called."""

    def __init__(self, node: onnx.NodeProto, found: _Sum, version: int) -> None:
        self.name, self.version = node.output[0], version
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.found, self.values = found, list(node.input)
        for i in sorted(found.stretched):
            self.values[i] = self.reshaped(self.values[i], found.extents(found.operands[i]))

    def step(self, kind: str, sources: Sequence[str], **attributes: Sequence[int] | int) -> str:
        target = f"{self.name}_{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, sources, [target], target, **attributes))
        return target

    def ints(self, values: Sequence[int]) -> str:
        made = f"{self.name}_ints{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.int64), made))
        return made

    def reshaped(self, value: str, extents: Sequence[int]) -> str:
        return self.step("Reshape", [value, self.ints(extents)])

    def turned(self, value: str, letters: Sequence[str], order: Sequence[str]) -> str:
        if list(letters) == list(order):
            return value
        return self.step("Transpose", [value], perm=[[*letters].index(x) for x in order])

    def sum_alone(self, i: int) -> None:
        """Sums an operand over the letters that only it has."""
        letters = self.found.operands[i]
        if lone := self.found.lone(i):
            axes, value = [letters.index(x) for x in lone], self.values[i]
            if self.version < _AXES_ARE_INPUTS:
                self.values[i] = self.step("ReduceSum", [value], axes=axes, keepdims=0)
            else:
                self.values[i] = self.step("ReduceSum", [value, self.ints(axes)], keepdims=0)
            self._put(i, "".join(x for x in letters if x not in lone))

    def contract(self, i: int, k: int) -> None:
        """Puts the product of two operands in the place of the first one, summed over the letters
        that nothing else has."""
        operands = self.found.operands
        others = {*self.found.out}.union(*(w for n, w in enumerate(operands) if n not in (i, k)))
        a, b = operands[i], operands[k]
        out = [x for x in dict.fromkeys(self.found.out + a + b) if x in {*a, *b} & others]
        pair = _Sum((a, b), "".join(out), self.found.sizes)
        if pair.depth:
            value, out = self._matrices(pair, self.values[i], self.values[k])
        else:
            value = self._elements(pair, self.values[i], self.values[k])
        self.values[i] = value
        self._put(i, "".join(out))
        del self.values[k]
        left = tuple(w for n, w in enumerate(self.found.operands) if n != k)
        self.found = replace(self.found, operands=left)

    def work(self, pair: tuple[int, int]) -> int:
        """The multiplications of a pair of operands."""
        letters = {*self.found.operands[pair[0]], *self.found.operands[pair[1]]}
        return math.prod(self.found.extents(letters))

    def _put(self, i: int, letters: str) -> None:
        changed = tuple(letters if n == i else w for n, w in enumerate(self.found.operands))
        self.found = replace(self.found, operands=changed)

    def _matrices(self, pair: _Sum, one: str, two: str) -> tuple[str, list[str]]:
        """A batched matrix product, and the order of its result's letters."""
        (a, b), depth = pair.operands, pair.depth
        batch = [x for x in pair.out if x in a and x in b]
        rows = [x for x in pair.out if x in a and x not in b]
        columns = [x for x in pair.out if x in b and x not in a]

        def matrix(value: str, letters: str, groups: Sequence[Sequence[str]]) -> str:
            turned = self.turned(value, letters, [*batch, *groups[0], *groups[1]])
            sides = [math.prod(pair.extents(g)) for g in groups]
            return self.reshaped(turned, [*pair.extents(batch), *sides])

        operands = [matrix(one, a, (rows, depth)), matrix(two, b, (depth, columns))]
        result, order = self.step("MatMul", operands), [*batch, *rows, *columns]
        return self.reshaped(result, pair.extents(order)), order

    def _elements(self, pair: _Sum, one: str, two: str) -> str:
        """A product of elements: both operands get dimensions of one for the letters they lack."""

        def stretched(value: str, letters: str) -> str:
            turned = self.turned(value, letters, [x for x in pair.out if x in letters])
            return self.reshaped(turned, [pair.sizes[x] if x in letters else 1 for x in pair.out])

        return self.step("Mul", list(map(stretched, (one, two), pair.operands)))


def _replaced(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], version: int
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """The nodes and constants that replace an einsum, or what is left of one that stays. Of several
    operands those are multiplied first whose product takes the fewest multiplications."""
    found = _summed(node, shapes) if node.op_type == "Einsum" else None
    if found is None:
        return [node], []
    steps = _Steps(node, found, version)
    for i in range(len(found.operands)):
        steps.sum_alone(i)
    while len(steps.found.operands) > 1:
        steps.contract(*min(combinations(range(len(steps.found.operands)), 2), key=steps.work))
    last = steps.turned(steps.values[0], steps.found.operands[0], steps.found.out)
    steps.nodes.append(helper.make_node("Identity", [last], [steps.name], f"{steps.name}_einsum"))
    return steps.nodes, steps.constants
