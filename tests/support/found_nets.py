"""Models whose elements decide extents, by what they do with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mcfuser.graph.dynamic.found import with_bounds
from mcfuser.graph.limits import DEFAULTS
from mcfuser.graph.load import bound, written_out
from mcfuser.graph.weights import OnnxModel
from tests.support.nets import Net

Arrays = Mapping[str, NDArray[np.generic]]
ROWS, COLUMNS, CLASSES = 9, 8, 3
INT64 = TensorProto.INT64


def bounded(model: onnx.ModelProto) -> OnnxModel:
    """The model with room for all that may be found."""
    fixed = bound(model.SerializeToString(), {}, DEFAULTS)
    return with_bounds(fixed, lambda one, decide: written_out(one, DEFAULTS, decide=decide))


def found(net: Net, condition: str) -> str:
    """A row of the positions where a condition over rows holds."""
    return net.op("Reshape", net.op("NonZero", condition), net.ints(-1))


def chosen_rows(net: Net, x: str, column: int = 0) -> str:
    """The rows of [n, 8] whose element in a column is positive."""
    first = net.op("Gather", x, net.const(column, np.int64), axis=1)
    return net.op("Gather", x, found(net, net.op("Greater", first, net.const(0.0))), axis=0)


def count(net: Net, x: str, most: int) -> str:
    """The number of rows, or `most` if that is less, as a row of one."""
    rows = net.op("Slice", net.op("Shape", x), net.ints(0), net.ints(1))
    return net.op("Min", rows, net.ints(most))


def floats(net: Net, x: str) -> str:
    return net.op("Cast", x, to=TensorProto.FLOAT)


def positions(net: Net, x: str) -> str:
    return floats(net, net.op("NonZero", net.op("Relu", x)))


def joined(net: Net, x: str) -> str:
    parts = [chosen_rows(net, x, column) for column in (0, 3)]
    both = net.op("Concat", *parts, net.op("Neg", x), axis=0)
    return chosen_rows(net, both, 5)


def best(net: Net, x: str) -> str:
    rows = chosen_rows(net, x)
    score = net.op("Gather", rows, net.const(1, np.int64), axis=1)
    net.op("TopK", score, count(net, rows, 4), outputs=2, axis=0)
    values, places = net.nodes[-1].output
    return net.op("Concat", net.op("Gather", rows, places, axis=0),
                  net.op("Unsqueeze", values, net.ints(1)), axis=1)  # fmt: skip


def first_rows(net: Net, x: str) -> str:
    return net.op("Slice", chosen_rows(net, x), net.ints(1), net.ints(5), net.ints(0))


def scattered(net: Net, x: str, kind: str = "ScatterElements") -> str:
    """What is computed of some rows, put back where they were."""
    first = net.op("Gather", x, net.const(0, np.int64), axis=1)
    places = found(net, net.op("Greater", first, net.const(0.0)))
    rows = net.op("Exp", net.op("Gather", x, places, axis=0))
    zeros = net.const(np.zeros((ROWS, COLUMNS)))
    column = net.op("Unsqueeze", places, net.ints(1))
    if kind == "ScatterND":
        return net.op("ScatterND", zeros, column, rows)
    everywhere = net.op("Expand", column, net.op("Shape", rows))
    if kind == "elements":  # a position for each element
        everywhere = net.op("Sub", everywhere, net.const(np.full((1, COLUMNS), ROWS), np.int64))
    return net.op("ScatterElements", zeros, everywhere, rows, axis=0)


def kept(net: Net, x: str, axis: int | None) -> str:
    length = {None: ROWS * COLUMNS, 0: ROWS, 1: COLUMNS}[axis]
    some = net.op("Slice", net.op("Reshape", x, net.ints(-1)), net.ints(0), net.ints(length))
    given = {} if axis is None else {"axis": axis}
    return net.op("Compress", x, net.op("Greater", some, net.const(0.0)), **given)


def boxes_of(net: Net, rows: str) -> str:
    """Boxes [n, 4] of rows [n, 8]."""
    return net.op("Slice", rows, net.ints(0), net.ints(4), net.ints(1))


def suppressed(net: Net, rows: str, most: int = 100) -> str:
    """The chosen boxes of rows [n, 8], whose last columns are scores of classes."""
    box = net.op("Unsqueeze", boxes_of(net, rows), net.ints(0))
    score = net.op("Slice", rows, net.ints(5), net.ints(5 + CLASSES), net.ints(1))
    score = net.op("Unsqueeze", net.op("Transpose", score), net.ints(0))
    limits = net.ints(most), net.const([0.2]), net.const([-0.5])
    chosen = net.op("NonMaxSuppression", box, score, *limits)
    place = net.op("Gather", chosen, net.const(2, np.int64), axis=1)
    return net.op("Concat", net.op("Gather", boxes_of(net, rows), place, axis=0),
                  floats(net, chosen), axis=1)  # fmt: skip


def unless_empty(net: Net, x: str, other: float = 0.0) -> str:
    """The largest elements are looked for where there are rows."""
    rows = chosen_rows(net, x)
    size = net.op("ReduceProd", net.op("Shape", rows), keepdims=0)
    none = net.op("Equal", size, net.const(0, np.int64))
    empty, inner = Net(), Net()
    nothing = empty.op("Add", empty.const(np.zeros((0, COLUMNS))), empty.const(other))
    if other:
        nothing = empty.op("Expand", empty.const(other), empty.ints(1, COLUMNS))
    most = inner.op("ReduceMax", rows, keepdims=0)
    moved = inner.op("Add", rows, most)
    branches = [one.model(out).graph for one, out in ((empty, nothing), (inner, moved))]
    for number, graph in enumerate(branches):
        for node in graph.node:
            node.name = f"{number}_{node.name}"
    return net.op("If", none, then_branch=branches[0], else_branch=branches[1])


def regions(net: Net, x: str) -> str:
    """Means of parts of some boxes in a picture."""
    boxes = boxes_of(net, net.op("Abs", chosen_rows(net, x)))
    rows = net.op("Slice", net.op("Shape", boxes), net.ints(0), net.ints(1))
    picture = net.weight(1, 2, 6, 5)
    whole = net.op("Mul", picture, net.op("ReduceSum", x, keepdims=0))
    zeros = net.op("ConstantOfShape", rows, value=helper.make_tensor("v", INT64, [1], [0]))
    return net.op("RoiAlign", whole, boxes, zeros, output_height=2, output_width=3,
                  sampling_ratio=2, coordinate_transformation_mode="half_pixel")  # fmt: skip


def numbered(net: Net, x: str) -> str:
    rows = chosen_rows(net, x)
    size = net.op("Gather", net.op("Shape", rows), net.const(0, np.int64), axis=0)
    at = floats(net, net.op("Range", net.const(0, np.int64), size, net.const(1, np.int64)))
    return net.op("Mul", rows, net.op("Unsqueeze", at, net.ints(1)))


def mean(net: Net, x: str) -> str:
    return net.op("ReduceMean", net.op("Exp", chosen_rows(net, x)), axes=[0])


def filled(net: Net, x: str, rows: int, flat: bool = False) -> str:
    """So many rows, the chosen ones first, or the first of these; and numbers behind them."""
    chosen = chosen_rows(net, x)
    size = net.op("Gather", net.op("Shape", chosen), net.ints(0), axis=0)
    left = net.op("Sub", net.ints(rows), size)
    if flat:
        chosen = net.op("Reshape", chosen, net.ints(-1))
        margins = net.op("Concat", net.ints(0), net.op("Mul", left, net.ints(COLUMNS)), axis=0)
        row = net.op("Pad", chosen, margins, net.const(np.float32(3)))
        return net.op("Reshape", row, net.ints(rows, COLUMNS))
    margins = net.op("Concat", net.ints(0, 1), left, net.ints(2), axis=0)
    return net.op("Pad", chosen, margins)


FOUND: Mapping[str, Callable[[Net, str], str]] = {
    "positions": positions,
    "rows": chosen_rows,
    "rows of rows": lambda net, x: chosen_rows(net, chosen_rows(net, x), 2),
    "what is joined": joined,
    "the best": best,
    "the first": first_rows,
    "whole rows put back": scattered,
    "rows put back": lambda net, x: scattered(net, x, "ScatterND"),
    "elements put back": lambda net, x: scattered(net, x, "elements"),
    "elements of all": lambda net, x: kept(net, x, None),
    "rows that are kept": lambda net, x: kept(net, x, 0),
    "columns that are kept": lambda net, x: kept(net, x, 1),
    "boxes": suppressed,
    "few boxes": lambda net, x: suppressed(net, x, 1),
    "boxes of rows": lambda net, x: suppressed(net, chosen_rows(net, x), 2),
    "rows unless there are none": unless_empty,
    "regions": regions,
    "numbered rows": numbered,
    "rows filled up": lambda net, x: filled(net, x, 12),
    "few rows filled up": lambda net, x: filled(net, x, 4),
    "flat rows filled up": lambda net, x: filled(net, x, 7, True),
    "a mean": mean,
    "a softmax over rows": lambda net, x: net.op("Softmax", chosen_rows(net, x), axis=0),
    "sums": lambda net, x: net.op("CumSum", chosen_rows(net, x), net.const(0, np.int64)),
}


def found_net(case: str) -> onnx.ModelProto:
    """The model of a case; its input is [9, 8]."""
    net = Net()
    return net.model(FOUND[case](net, net.input("x", ROWS, COLUMNS)))


def drawn(part: float, seed: int = 0) -> NDArray[np.float32]:
    """An input of which a part of the elements is positive."""
    random = np.random.default_rng(seed)
    x = np.abs(random.standard_normal((ROWS, COLUMNS))) + 0.01
    return np.where(random.random((ROWS, COLUMNS)) < part, x, -x).astype(np.float32)
