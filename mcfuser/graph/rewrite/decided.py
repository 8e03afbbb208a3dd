"""Operators whose results have as many elements as the elements of their operands decide."""

from __future__ import annotations

from mcfuser.graph.rewrite.body import NodeBody

_ROW = [-1]


def suppressed(body: NodeBody) -> list[str | None] | None:
    """NonMaxSuppression, which stays if how many boxes there may be is known before."""
    names = "number of boxes", "overlap", "score"
    for i, name in enumerate(names, 2):
        if body.has(i) and body.array(body.read(i)) is None:
            raise body.refusal(f"its {name} is known only at run time")
    most = body.array(body.input(2))
    if most is None or most.item() < 1:
        raise body.refusal("it chooses no boxes, as its number of boxes is 0 or left out")
    return None


def kept(body: NodeBody) -> list[str | None] | None:
    """Compress, by the positions where its condition holds."""
    x, condition = body.read(0), body.read(1)
    if body.array(condition) is not None:
        return None
    axis = body.attribute("axis", None)
    if axis is None:
        x = body.op("Reshape", x, body.ints(_ROW))
    found = body.op("NonZero", condition)
    row = body.op("Reshape", found, body.ints(_ROW))
    return [body.op("Gather", x, row, axis=int(axis or 0))]
