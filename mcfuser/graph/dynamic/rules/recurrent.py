"""Recurrences over sequences that end at a run-time extent."""

from __future__ import annotations

from onnx import TensorProto

from mcfuser.graph.dynamic.layout import Operand, is_dynamic, plain, zeroed
from mcfuser.graph.dynamic.node import PaddedNode, only
from mcfuser.graph.recurrence import LENGTHS, WEIGHTS


def recurrence(n: PaddedNode) -> list[Operand]:
    """The sequences of a bucket are as long as its upper extent, and those of the model end at the
    run-time one: they are given lengths. A row of a batch depends on no other one."""
    x = n.single(n.operand(0), 0, 1)
    n.static(x, (2,), "which products sum over")
    others = {i: n.operand(i) for i in range(1, len(n.node.input)) if n.has(i)}
    for i, weights in others.items():
        if i in WEIGHTS:
            n.static(weights, range(len(weights.layout)), "of its weights")
    names = {i: operand.name for i, operand in others.items()}
    if is_dynamic(x.layout[0]):
        names[LENGTHS] = _lengths(n, x, names.get(LENGTHS))
    count = max((len(n.node.input) - 1, *names))
    made = n.write([x.name, *(names.get(i, "") for i in range(1, count + 1))])
    steps, batch = zeroed(x.layout[0]), plain(x.layout[1])
    directions, hidden = (n.graph.factor(e) for e in _extents(n))
    form = (directions,), batch, (hidden,)
    layouts = ((steps, *form), form, form)
    finite = x.finite and not is_dynamic(batch)
    return [Operand(name, layout, finite) for name, layout in zip(made, layouts, strict=False)]


def _extents(n: PaddedNode) -> tuple[int, int]:
    """The number of directions, and of units."""
    shape = n.graph.upper.shape(n.node.input[2])
    if shape is None:
        raise n.refusal("the shape of its weights is not known")
    return shape[0], shape[2]


def _lengths(n: PaddedNode, x: Operand, given: str | None) -> str:
    """Writes the lengths of sequences that end at the run-time extent, or before it."""
    graph, (steps, batch) = n.graph, (only(d) for d in x.layout[:2])
    assert steps is not None
    whole = graph.op("Cast", graph.length_name(steps, n.node), to=TensorProto.INT32)
    rows = graph.ints(1 if batch is None else batch.upper)
    lengths = graph.op("Expand", whole, rows)
    return lengths if given is None else graph.op("Min", lengths, given)
