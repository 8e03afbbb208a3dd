"""Loop, Scan and SequenceMap as the nodes of all their steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto

from mcfuser.graph.messages import inside
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.inner import InnerGraph, WrittenNodes, copied, opened
from mcfuser.graph.rewrite.known import INTEGERS
from mcfuser.graph.rewrite.sequence import divided, joined

_DIVISIONS = ("Div", "Mod")
_AT_POSITIONS = (
    "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "TensorScatter",
)  # fmt: skip
LoopSteps = Generator[WrittenNodes, None, Sequence[str | None]]
"""The nodes and constants of one step after another, and in the end the values that stand for the
node's outputs. What is known of a step's values is asked for before the next step is written."""


@dataclass
class _Repeated:
    """The graph that a node repeats."""

    body: NodeBody
    graph: InnerGraph
    inputs: Sequence[str]
    made: int = 0
    results: list[str] = field(default_factory=list)

    def step(self, values: Sequence[str]) -> WrittenNodes:
        """The nodes of one more step, for the values of the graph's inputs; `results` are the names
        of its results."""
        if len(values) != len(self.inputs):
            why = f"it has {len(values)} values for the {len(self.inputs)} inputs of its graph"
            raise self.body.refusal(why)
        self.body.reserve(len(self.graph.nodes) + 1, "written out step by step")
        name, known = f"{self.body.node.name}/step_{self.made}", self.body.known
        self.made += 1
        self.results = [known.fresh(f"{name}/result_{i}") for i in range(len(self.graph.results))]
        bound = dict(zip(self.inputs, values, strict=True))
        return copied(self.graph, self.results, name, known, bound), []


def loop(body: NodeBody) -> LoopSteps:
    """ONNX's Loop. Where its condition is known only at run time, all steps are computed up to one
    at which it cannot hold, and the results are those of the last step before which it held."""
    repeated, constants = _opened(body, "body")
    yield [], constants
    most = _most_steps(body)
    carried = list(body.node.input[2:])
    results = carried
    columns: list[list[str]] = [[] for _ in repeated.graph.results[1 + len(carried) :]]
    true = body.const(True, TensorProto.BOOL)
    going = body.input(1) or true
    while most is None or repeated.made < most:
        truth = body.array(going)
        if truth is not None and not truth.all():
            break
        if truth is None and columns:
            raise body.refusal(
                "its condition is known only at run time, and so is the extent of an output that "
                "has a row for each step"
            )
        number = body.const(repeated.made, TensorProto.INT64)
        nodes, _ = repeated.step([number, true, *carried])
        yield nodes, []
        after, *carried = repeated.results[: 1 + len(carried)]
        for column, value in zip(columns, repeated.results[1 + len(carried) :], strict=True):
            column.append(value)
        if truth is None:
            _check_safe(body, nodes)
            results = [_chosen(body, going, *v) for v in zip(results, carried, strict=True)]
            going = _both(body, going, after)
        else:
            results, going = carried, after
    return [*results, *(_collected(body, column, 0) for column in columns)]


def scan(body: NodeBody) -> LoopSteps:
    """ONNX's Scan: a step for each position of its last inputs."""
    count = body.attribute("num_scan_inputs", 0)
    if not 1 <= count <= len(body.node.input):
        raise body.refusal(f"it has {len(body.node.input)} inputs, of which it should scan {count}")
    repeated, constants = _opened(body, "body")
    yield [], constants
    carried = list(body.node.input[:-count])
    rows = []
    axes = body.attribute("scan_input_axes", [0] * count)
    backward = body.attribute("scan_input_directions", [0] * count)
    for name, axis, turned in zip(body.node.input[-count:], axes, backward, strict=True):
        found = divided(body, name, axis % len(body.shape(name)))
        rows.append(found[::-1] if turned else found)
    steps = len(rows[0])
    if not steps or any(len(r) != steps for r in rows):
        raise body.refusal(f"the inputs that it scans have {[len(r) for r in rows]} positions")
    body.reserve(steps * len(repeated.graph.nodes), f"written out in {steps} steps")
    columns: list[list[str]] = [[] for _ in repeated.graph.results[len(carried) :]]
    for step in zip(*rows, strict=True):
        yield repeated.step([*carried, *step])
        carried, values = repeated.results[: len(carried)], repeated.results[len(carried) :]
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    ends = body.attribute("scan_output_axes", [0] * len(columns))
    turns = body.attribute("scan_output_directions", [0] * len(columns))
    collected = [
        _collected(body, column[::-1] if turned else column, axis)
        for column, axis, turned in zip(columns, ends, turns, strict=True)
    ]
    return [*carried, *collected]


def sequence_map(body: NodeBody) -> LoopSteps:
    """ONNX's SequenceMap: a step for each tensor of its sequences; other inputs are the same in all
    steps."""
    repeated, constants = _opened(body, "body")
    yield [], constants
    columns: list[list[str]] = [[] for _ in repeated.graph.results]
    for i, item in enumerate(body.items(0)):
        values = [item]
        for position, name in enumerate(body.node.input[1:], 1):
            values.append(body.items(position)[i] if name in body.known.sequences else name)
        yield repeated.step(values)
        for column, value in zip(columns, repeated.results, strict=True):
            column.append(value)
    return [body.sequence(column) for column in columns]


LOOPS: Mapping[str, Callable[[NodeBody], LoopSteps]] = {
    "Loop": loop,
    "Scan": scan,
    "SequenceMap": sequence_map,
}
"""Operators of ONNX's own domain that repeat a graph."""


def _opened(body: NodeBody, attribute: str) -> tuple[_Repeated, list[TensorProto]]:
    graph: onnx.GraphProto | None = body.attribute(attribute, None)
    if graph is None:
        raise body.refusal(f"it lacks its attribute '{attribute}'")
    inner, constants = opened(body.node, graph, body.known)
    return _Repeated(body, inner, [value.name for value in graph.input]), constants


def _most_steps(body: NodeBody) -> int | None:
    """The largest number of steps; None where only the condition ends the loop."""
    if not body.has(0):
        return None
    given = body.array(body.read(0))
    if given is None or given.size != 1:
        raise body.refusal("the largest number of its steps is known only at run time")
    return int(given.reshape(()))


def _check_safe(body: NodeBody, nodes: Sequence[onnx.NodeProto]) -> None:
    """Raises ModelError where a step after the loop's end might divide integers by zero, or reach
    beyond a tensor: either may end a program."""
    for node in (inner for each in nodes for inner in inside(each, onnx.NodeProto)):
        if node.op_type in _DIVISIONS:
            safe = _divides(body, node)
        else:
            safe = node.op_type not in _AT_POSITIONS or _reaches(body, node)
        if not safe:
            raise body.refusal(
                f"its condition is known only at run time, and node '{node.name}' "
                f"({node.op_type}) of a step after the last one could end the program"
            )


def _divides(body: NodeBody, node: onnx.NodeProto) -> bool:
    """Whether a division is one of floats, or by constants none of which is zero."""
    kind, divisor = body.known.dtype(node.input[1]), body.array(node.input[1])
    floats = kind is not None and kind not in INTEGERS
    return floats or (divisor is not None and bool(np.all(divisor)))


def _reaches(body: NodeBody, node: onnx.NodeProto) -> bool:
    """Whether an operator's positions are constants that its tensor has."""
    shape, places = body.known.shape(node.input[0]), body.array(node.input[1])
    given = {a.name: a.i for a in node.attribute}
    if not shape or places is None or given.get("batch_dims"):
        return False
    if node.op_type.endswith("ND"):
        extents: tuple[int, ...] = shape[: places.shape[-1]]
    else:
        extents = (shape[given.get("axis", 0)],)
    ends = np.asarray(extents, np.int64)
    wide = places.astype(np.int64)
    return bool(np.all((wide >= -ends) & (wide < ends)))


def _chosen(body: NodeBody, going: str, before: str, after: str) -> str:
    """A result after a step if the loop was `going` before it, else the result so far."""
    for name in (before, after):
        if name in body.known.sequences:
            raise body.refusal("it changes a sequence, and its condition is known only at run time")
    if before == after:
        return after
    if body.shape(before) != body.shape(after):
        raise body.refusal(
            f"a value has the shape {body.shape(before)} before a step and {body.shape(after)} "
            "after it, and the loop's condition is known only at run time"
        )
    return body.op("Where", body.reshape(going), after, before)


def _both(body: NodeBody, going: str, after: str) -> str:
    """Whether the loop goes on after a step before which it went on if `going`."""
    truth = body.array(after)
    if truth is None:
        return body.op("And", body.reshape(going), body.reshape(after))
    return going if truth.all() else after


def _collected(body: NodeBody, values: list[str], axis: int) -> str:
    if not values:
        raise body.refusal("it makes no step, and an output has a row for each")
    return joined(body, values, axis, new=True)
