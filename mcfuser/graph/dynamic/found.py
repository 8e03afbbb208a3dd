"""Writes a model whose elements decide extents with room for all that may be found.

The model is looked at where several numbers of elements are found, as that of a bucket at several
shapes of its inputs: what depends on them has the same nodes at each of them, and masks at what is
not found. Outputs are cut to what was found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from mcfuser.errors import ModelError
from mcfuser.graph.decided import DECIDING, Decide, KnownModel, found_extent, found_type, most_found
from mcfuser.graph.dynamic.analysis import bounded
from mcfuser.graph.dynamic.difference import first_difference
from mcfuser.graph.dynamic.facts import Evaluations, ShapeFacts, shape_facts
from mcfuser.graph.dynamic.length import Length, evaluate, symbols
from mcfuser.graph.messages import inside
from mcfuser.graph.read import name_nodes
from mcfuser.graph.weights import OnnxModel

Write = Callable[[OnnxModel, "Decide | None"], OnnxModel]
"""Writes a model, which is changed, in operators that TVM imports."""
_POINTS = 8
"""At how many numbers of found elements a model is looked at."""
_TURNS = 8
"""How often other numbers are drawn where two extents have the same ones."""
_NEEDED = "NonMaxSuppression"
"""What TVM does not have, so that there is no other way."""


def with_bounds(fixed: OnnxModel, write: Write) -> OnnxModel:
    """A bound model in operators that TVM imports, with room for what its elements decide; as
    `write` leaves it where nothing does, or where some operator cannot be computed so but by TVM.
    Raises ModelError."""
    try:
        made = _bounded(_Model(fixed, write))
    except ModelError:
        if any(n.op_type == _NEEDED for n in inside(fixed.proto.graph, onnx.NodeProto)):
            raise
        made = None
    return write(fixed, None) if made is None else made


@dataclass
class _Model:
    """A bound model, and how it is written."""

    fixed: OnnxModel
    write: Write
    evaluations: Evaluations = field(default_factory=dict)

    def facts(self, decide: Decide) -> ShapeFacts:
        """What the model computes before it runs, where it finds what `decide` says."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.fixed.proto)
        written = self.write(self.fixed.with_proto(proto), decide)
        name_nodes(written.proto.graph)
        return shape_facts(written, self.evaluations, self._original, decide)

    @cached_property
    def _original(self) -> frozenset[str]:
        """The constants that the model had before its operators were written out."""
        graph = self.fixed.proto.graph
        literals = [n.output[0] for n in graph.node if n.op_type == "Constant"]
        return frozenset((*literals, *(w.name for w in graph.initializer)))


def _bounded(model: _Model) -> OnnxModel | None:
    """The model with room for what is found; None where elements decide nothing."""
    most = model.facts(_Drawn(0, 0))
    found = _extents(most)
    if not found:
        return None
    points, every = _looked_at(model, most, found)
    branches = [n for n in model.fixed.proto.graph.node if n.op_type == "If"]
    none = model.facts(_nothing) if branches else most
    chosen = [n for n in branches if _inside(most, n.name) != _inside(none, n.name)]
    made = bounded(points, every, found, [r for n in chosen for r in n.output])
    for node in chosen:
        for result in node.output:
            _check_none(node.name, made.shapes[result], none.shape(result))
    return made.model


def _looked_at(
    model: _Model, most: ShapeFacts, found: Mapping[str, str]
) -> tuple[list[dict[str, int]], list[ShapeFacts]]:
    """Numbers of found elements at which no two extents are the same, the largest ones first, and
    the facts of the model at each, which are `most` at those. Raises ModelError where it has other
    nodes at some of them."""
    for turn in range(_TURNS):
        every = [most, *(model.facts(_Drawn(turn, point)) for point in range(1, _POINTS))]
        for one in every[1:]:
            other = first_difference(most.model.proto.graph, one.model.proto.graph)
            if other is not None:
                raise ModelError(
                    f"{other} depends on how many elements are found, in more than its shape; "
                    "export the model without it"
                )
        points = [_numbers(one, found) for one in every]
        columns = [tuple(point[name] for point in points) for name in points[0]]
        if len(set(columns)) == len(columns):
            return points, every
    raise ModelError("the numbers of elements that the model finds cannot be told apart")


def _extents(facts: ShapeFacts) -> dict[str, str]:
    """The names of the extents that elements decide, by the values that have them: nodes that find
    in the same values what they look for find as much."""
    return {
        node.output[0]: _key(node)
        for node in facts.model.proto.graph.node
        if node.op_type in DECIDING and not node.domain and not facts.is_constant(node.output[0])
    }


def _key(node: onnx.NodeProto) -> str:
    return " ".join((node.op_type, *node.input))


def _numbers(facts: ShapeFacts, found: Mapping[str, str]) -> dict[str, int]:
    """How many elements are found at a point, by the extents' names."""
    numbers = {}
    for node in facts.model.proto.graph.node:
        if node.output and (symbol := found.get(node.output[0])) is not None:
            count = found_extent(node, facts)
            if count is None:
                raise ModelError(
                    f"the shape of '{node.input[0]}', in which operator '{node.op_type}' (node "
                    f"'{node.name}') looks for elements, is not known before the model runs"
                )
            numbers[symbol] = count
    return numbers


class _Drawn:
    """Draws how many elements are found at a point: all there may be at the first one, few or many
    at the others. What may be one element alone is found or is not."""

    def __init__(self, turn: int, point: int) -> None:
        self.turn, self.point = turn, point

    def __call__(self, node: onnx.NodeProto, known: KnownModel) -> Mapping[str, onnx.TypeProto]:
        most = most_found(node, known)
        return {} if most is None else found_type(node, self.number(_key(node), most), known)

    def number(self, key: str, most: int) -> int:
        """A number of elements for an extent's name."""
        if not self.point:
            return most
        text = f"{self.turn} {self.point} {key}"
        part = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) / 2**32
        if most < 2:
            return most if part < 0.5 and self.point > 1 else 0
        return 1 + int(part * most) if self.point % 2 else int(most**part)


def _nothing(node: onnx.NodeProto, known: KnownModel) -> Mapping[str, onnx.TypeProto]:
    """The types of what is found where nothing is."""
    return {} if most_found(node, known) is None else found_type(node, 0, known)


def _inside(facts: ShapeFacts, branch: str) -> list[tuple[str, str]]:
    """The nodes of the branch that an If is written as, by its name."""
    nodes = facts.model.proto.graph.node
    return [(n.op_type, n.name) for n in nodes if n.name.startswith(f"{branch}/")]


def _check_none(branch: str, usual: Sequence[Length | int], none: tuple[int, ...] | None) -> None:
    """Raises ModelError where a result of an If is not empty if no element is found, though it is
    written as another branch then; an empty one is the same, whichever branch it is of. Exporters
    branch before they look for the largest of no elements."""
    zero = tuple(
        n if isinstance(n, int) else evaluate(n, dict.fromkeys(symbols(n), 0)) for n in usual
    )
    if none != zero or 0 not in zero:
        raise ModelError(
            f"operator 'If' (node '{branch}') does something else where no element is found; "
            "export the model without it"
        )
