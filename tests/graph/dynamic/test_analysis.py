"""Every operator at extents that are known at run time, beside the model itself in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mcfuser.extents import InputShapes
from mcfuser.graph.dynamic.analysis import PaddedModel
from mcfuser.graph.dynamic.bucket import DynamicModel
from mcfuser.measure.tolerance import difference
from tests.support.dynamic_models import MODELS, hidden_sum, vision
from tests.support.dynamic_nets import (
    drawn,
    dynamic,
    encoder,
    in_bucket,
    run,
    spans,
    whole_bucket,
)
from tests.support.nets import Net

I64 = np.int64
ROWS: InputShapes = {"x": (spans(1, 9), 8)}
"""x has rows whose number, `n`, is known at run time, and eight columns."""


def check(model: DynamicModel, bucket: PaddedModel, point: dict[str, int], seed: int = 0) -> None:
    feeds = drawn(model, point, seed)
    expected = run(model.fixed(point), feeds)
    found = in_bucket(bucket, feeds, point)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert difference(one, other) <= 1e-5, f"at {point}"


def every_point(model: DynamicModel) -> list[dict[str, int]]:
    points: list[dict[str, int]] = [{}]
    for e in model.shapes.extents:
        points = [{**p, e.name: n} for p in points for n in range(e.low, e.high + 1)]
    return points


def op(kind: str, **attributes: object) -> Callable[[Net, str], str]:
    return lambda net, x: net.op(kind, x, **attributes)


def reduced(kind: str, *axes: int, **attributes: object) -> Callable[[Net, str], str]:
    if kind == "ReduceSum":
        return lambda net, x: net.op(kind, x, net.ints(*axes), **attributes)
    return lambda net, x: net.op(kind, x, axes=list(axes), **attributes)


def sliced(start: int, stop: int, axis: int = 0, step: int = 1) -> Callable[[Net, str], str]:
    return lambda net, x: net.op("Slice", x, *(net.ints(v) for v in (start, stop, axis, step)))


def length(net: Net, x: str) -> str:
    return net.op("Gather", net.op("Shape", x), net.const(0, I64), axis=0)


def places(net: Net, x: str, start: int = 0) -> str:
    count = length(net, x)
    return net.op("Range", net.const(start, I64), count, net.const(1, I64))


def by_length(net: Net, x: str) -> str:
    number = net.op("Cast", length(net, x), to=TensorProto.FLOAT)
    return net.op("Div", x, net.op("Sqrt", number))


def size_as_number(net: Net, x: str) -> str:
    return net.op("Div", x, net.op("Cast", net.op("Size", x), to=TensorProto.FLOAT))


def causal(net: Net, x: str) -> str:
    scores = net.op("MatMul", x, net.op("Transpose", x, perm=[1, 0]))
    at = places(net, x)
    rows = net.op("Unsqueeze", at, net.ints(1))
    seen = net.op("LessOrEqual", at, rows)
    masked = net.op("Where", seen, scores, net.const(-1e9))
    return net.op("MatMul", net.op("Softmax", masked, axis=-1), x)


def aligned_to_the_end(net: Net, x: str) -> str:
    """A bias by the distance to the last row: its numbers change with the extent."""
    last = net.op("Sub", length(net, x), net.const(1, I64))
    left = net.op("Sub", last, places(net, x))
    return net.op("Add", x, net.op("Unsqueeze", net.op("Cast", left, to=1), net.ints(1)))


def range_from_the_end(net: Net, x: str) -> str:
    start = net.op("Neg", length(net, x))
    at = net.op("Range", start, net.const(0, I64), net.const(1, I64))
    return net.op("Add", x, net.op("Unsqueeze", net.op("Cast", at, to=1), net.ints(1)))


def gram(net: Net, x: str) -> str:
    return net.op("MatMul", net.op("Transpose", net.op("Exp", x), perm=[1, 0]), x)


def gram_by_einsum(net: Net, x: str) -> str:
    return net.op("Einsum", x, net.op("Cos", x), equation="ni,nj->ij")


def gram_by_gemm(net: Net, x: str) -> str:
    return net.op("Gemm", net.op("Cos", x), x, net.weight(8), transA=1)


def mean_of_logs(net: Net, x: str) -> str:
    """The logarithm of a padded zero is minus infinity, which no sum may see."""
    return net.op("ReduceMean", net.op("Log", net.op("Abs", x)), axes=[0], keepdims=1)


def padded_then_summed(net: Net, x: str) -> str:
    wide = net.op("Pad", net.op("Cos", x), net.ints(1, 0, 2, 0), net.const(3.0))
    return net.op("ReduceSum", wide, net.ints(0), keepdims=0)


def joined(net: Net, x: str) -> str:
    return net.op("Concat", x, net.op("Neg", x), net.weight(3, 8), net.op("Exp", x), axis=0)


def joined_last(net: Net, x: str) -> str:
    return net.op("Concat", net.weight(3, 8), x, axis=0)


def rows_of_a_table(net: Net, x: str) -> str:
    return net.op("Gather", net.weight(400, 8), places(net, x))


def own_rows(net: Net, x: str) -> str:
    return net.op("Gather", x, net.ints(0, -1, 0), axis=0)


def last_row(net: Net, x: str) -> str:
    last = net.op("Sub", length(net, x), net.const(1, I64))
    return net.op("Gather", x, last, axis=0)


def merged_and_divided(net: Net, x: str) -> str:
    flat = net.op("Reshape", net.op("Reshape", x, net.ints(-1, 4, 2)), net.ints(-1))
    return net.op("Reshape", net.op("Relu", flat), net.ints(-1, 8))


def expanded(net: Net, x: str) -> str:
    count = net.op("Unsqueeze", length(net, x), net.ints(0))
    shape = net.op("Concat", count, net.ints(8), axis=0)
    return net.op("Mul", x, net.op("Expand", net.weight(1, 8), shape))


def tiled(net: Net, x: str) -> str:
    return net.op("ReduceSum", net.op("Tile", x, net.ints(1, 3)), net.ints(0))


def buffered(net: Net, x: str) -> str:
    """The first rows of a longer table, as decoders cut their masks."""
    count = net.op("Unsqueeze", length(net, x), net.ints(0))
    part = net.op("Slice", net.weight(400, 8), net.ints(0), count, net.ints(0))
    return net.op("Add", x, part)


def counted_from_the_start(net: Net, x: str) -> str:
    return net.op("CumSum", x, net.const(0, I64))


def counted_from_the_end(net: Net, x: str) -> str:
    return net.op("CumSum", net.op("Exp", x), net.const(0, I64), reverse=1)


def largest(net: Net, x: str) -> str:
    return net.op("TopK", x, net.ints(1), outputs=2, axis=0)


def triangle(net: Net, x: str) -> str:
    return net.op("Trilu", net.op("MatMul", x, net.op("Transpose", x, perm=[1, 0])), upper=0)


def indexed(net: Net, x: str) -> str:
    """Rows and columns by an index of both, as a mask is read by positions."""
    length = net.op("Squeeze", net.op("Shape", x, start=0, end=1), net.ints(0))
    rows = net.op("Range", net.const(0, I64), length, net.const(1, I64))
    at = net.op("Unsqueeze", net.op("Unsqueeze", rows, net.ints(1)), net.ints(2))
    at = net.op("Expand", at, net.ints(1, 8, 1))
    columns = net.op("Sub", net.const(2, I64), net.op("Mod", at, net.const(5, I64)))
    return net.op("GatherND", x, net.op("Concat", at, columns, axis=-1))


def indexed_from_the_end(net: Net, x: str) -> str:
    """The rows in the opposite order; what is at a padded position is an index of no row."""
    length = net.op("Squeeze", net.op("Shape", x, start=0, end=1), net.ints(0))
    rows = net.op("Range", net.const(0, I64), length, net.const(1, I64))
    at = net.op("Sub", net.const(-1, I64), net.op("Add", rows, net.op("CumSum", net.op(
        "Cast", net.op("Mul", net.op("ReduceMax", net.op("Abs", x), axes=[1], keepdims=0),
                       net.const(0.0)), to=TensorProto.INT64), net.const(0, I64))))  # fmt: skip
    return net.op("GatherND", x, net.op("Unsqueeze", at, net.ints(1)))


def quotient_of_integers(net: Net, x: str) -> str:
    whole = net.op("Cast", net.op("Mul", net.op("Abs", x), net.const(100.0)), to=TensorProto.INT64)
    more = net.op("Add", whole, net.const(0, I64))
    summed = net.op("Div", net.const(1000, I64), net.op("Max", more, net.const(1, I64)))
    return net.op("Cast", summed, to=TensorProto.FLOAT)


def quantized(net: Net, x: str) -> str:
    net.op("DynamicQuantizeLinear", net.op("Exp", x), outputs=3)
    whole, scale, zero = list(net.nodes[-1].output)
    weight = net.const(net.random.integers(-9, 9, (8, 4)), np.int8)
    product = net.op("MatMulInteger", whole, weight, zero, net.const(0, np.int8))
    return net.op("Mul", net.op("Cast", product, to=TensorProto.FLOAT), scale)


def repeated_for_each_row(net: Net, x: str) -> str:
    """A table that is tiled once for each row, beside rows that are divided among heads: what is
    padded is the same where one dimension holds (rows, heads) and the other their product. The sum
    is over the rows, so padding must not reach it."""
    count = net.op("Unsqueeze", length(net, x), net.ints(0))
    heads = net.op("Reshape", x, net.ints(-1, 1, 2))
    repeats = net.op("Concat", count, net.ints(1, 1), axis=0)
    table = net.op("Tile", net.weight(4, 2, 2), repeats)
    scores = net.op("MatMul", net.op("Exp", heads), table)
    all_heads = net.op("Mul", count, net.ints(4))
    shape = net.op("Concat", all_heads, net.ints(1, 2), axis=0)
    swapped = net.op("Expand", net.const([[[1, 0]]], I64), shape)
    chosen = net.op("GatherElements", scores, swapped, axis=2)
    first = net.op("Slice", table, net.ints(0), net.ints(1), net.ints(1))
    both = net.op("Add", chosen, net.op("Mul", heads, first))
    total = net.op("ReduceSum", net.op("Reshape", both, net.ints(-1, 8)), net.ints(0))
    return net.op("Sub", x, total)


def row_count(net: Net, x: str) -> str:
    return net.op("Unsqueeze", length(net, x), net.ints(0))


def few_of_the_largest(net: Net, x: str) -> str:
    """Four rows, or all that there are."""
    most = net.op("Min", row_count(net, x), net.ints(4))
    score = net.op("ReduceSum", x, net.ints(1), keepdims=0)
    net.op("TopK", score, most, outputs=2, axis=0)
    values, at = net.nodes[-1].output
    return net.op("Mul", net.op("Gather", x, at, axis=0), net.op("Unsqueeze", values, net.ints(1)))


def filled_up(net: Net, x: str) -> str:
    """Twelve rows and a column on each side, of which those behind the model's hold a number."""
    left = net.op("Sub", net.ints(12), row_count(net, x))
    margins = net.op("Concat", net.ints(0, 1), left, net.ints(1), axis=0)
    return net.op("Pad", net.op("Exp", x), margins, net.const(np.float32(3)))


def cut_to_one(net: Net, x: str) -> str:
    """A row: a margin that is no larger than 0 cuts all but it."""
    left = net.op("Sub", net.ints(1), row_count(net, x))
    margins = net.op("Concat", net.ints(0, 0), left, net.ints(0), axis=0)
    return net.op("Pad", net.op("Exp", x), margins)


def put_into_a_table(net: Net, x: str, from_end: bool = False) -> str:
    """Rows that are written over some of a longer table, counted from its start or its end."""
    at = net.op("Unsqueeze", places(net, x), net.ints(1))
    if from_end:
        at = net.op("Sub", net.const(-1, I64), at)
    everywhere = net.op("Expand", at, net.op("Concat", row_count(net, x), net.ints(8), axis=0))
    shifted = net.op("Mod", everywhere, net.const(12, I64), fmod=1)
    return net.op("ScatterElements", net.weight(12, 8), shifted, net.op("Exp", x), axis=0)


def put_into_itself(net: Net, x: str) -> str:
    """The first row over the last one."""
    last = net.op("Sub", row_count(net, x), net.ints(1))
    at = net.op("Reshape", last, net.ints(1, 1))
    first = net.op("Slice", x, net.ints(0), net.ints(1), net.ints(0))
    return net.op("ScatterND", net.op("Exp", x), at, first)


def added_to_a_table(net: Net, x: str) -> str:
    at = net.op("Unsqueeze", net.op("Mod", places(net, x), net.const(3, I64)), net.ints(1))
    return net.op("ScatterND", net.weight(12, 8), at, net.op("Exp", x), reduction="add")


def regions_of_a_picture(net: Net, x: str) -> str:
    boxes = net.op("Slice", net.op("Abs", x), net.ints(0), net.ints(4), net.ints(1))
    of = net.op("Mul", places(net, x), net.const(0, I64))
    return net.op("RoiAlign", net.weight(1, 2, 6, 5), boxes, of, output_height=2, output_width=1,
                  sampling_ratio=1)  # fmt: skip


CASES: dict[str, Callable[[Net, str], str]] = {
    "relu": op("Relu"),
    "softmax over columns": op("Softmax", axis=-1),
    "softmax over rows": op("Softmax", axis=0),
    "logarithm of softmax": op("LogSoftmax", axis=0),
    "sum": reduced("ReduceSum", 0),
    "sum of all": reduced("ReduceSum", 0, 1, keepdims=0),
    "mean": reduced("ReduceMean", 0),
    "mean of all": reduced("ReduceMean", 0, 1, keepdims=0),
    "mean of columns": reduced("ReduceMean", 1, keepdims=0),
    "maximum": reduced("ReduceMax", 0, keepdims=0),
    "minimum": reduced("ReduceMin", -2),
    "product": reduced("ReduceProd", 0),
    "norm": reduced("ReduceL2", 0),
    "sum of squares": reduced("ReduceSumSquare", 0),
    "sum of magnitudes": reduced("ReduceL1", 0),
    "logarithm of sum of exponentials": reduced("ReduceLogSumExp", 0),
    "place of the maximum": lambda net, x: net.op("Cast", net.op("ArgMax", x, axis=0), to=1),
    "place of the minimum": lambda net, x: net.op("Cast", net.op("ArgMin", x, axis=0), to=1),
    "first rows": sliced(0, 1),
    "from the second row": sliced(1, 1 << 40),
    "all but the last": sliced(0, -1),
    "last row": sliced(-1, 1 << 40),
    "every second row": sliced(0, 1 << 40, step=2),
    "reversed": sliced(-1, -(1 << 40), step=-1),
    "columns": sliced(2, -1, axis=1),
    "put into a table from its end": lambda net, x: put_into_a_table(net, x, True),
    **{
        f.__name__.replace("_", " "): f
        for f in (
            by_length, size_as_number, causal, aligned_to_the_end, range_from_the_end, gram,
            gram_by_einsum, gram_by_gemm, mean_of_logs, padded_then_summed, joined, joined_last,
            rows_of_a_table, own_rows, last_row, merged_and_divided, expanded, tiled, buffered,
            counted_from_the_start, counted_from_the_end, largest, triangle,
            indexed, indexed_from_the_end, repeated_for_each_row,
            quotient_of_integers, quantized, few_of_the_largest, filled_up, cut_to_one,
            put_into_a_table, put_into_itself, added_to_a_table, regions_of_a_picture,
        )
    },
}  # fmt: skip


def rows_model(case: str) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", "n", 8)
    return net.model(CASES[case](net, x))


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_bucket_computes_the_operator_at_every_extent(case: str) -> None:
    low = 2 if "from the second" in case or "but the last" in case else 1
    model = dynamic(rows_model(case), {"x": (spans(low, 9), 8)})
    bucket = whole_bucket(model)
    for point in every_point(model):
        check(model, bucket, point)


STEPS = [
    "relu", "softmax over columns", "softmax over rows", "from the second row", "reversed",
    "every second row", *(n.replace("_", " ") for n in (
        "by_length", "causal", "aligned_to_the_end", "range_from_the_end", "joined", "joined_last",
        "own_rows", "merged_and_divided", "expanded", "buffered", "counted_from_the_start",
        "counted_from_the_end", "gram", "indexed", "indexed_from_the_end", "repeated_for_each_row",
    )),
]  # fmt: skip
"""Operators whose results have rows of eight columns, as what they read has."""


@settings(max_examples=16, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
    between=st.lists(st.sampled_from(["Tanh", "Cos", "Sigmoid", "Log"]), min_size=5, max_size=5),
    last=st.sampled_from(sorted(CASES)),
)
def test_operators_after_one_another(steps: list[str], between: list[str], last: str) -> None:
    """Functions between them keep numbers small, and make padding zero, finite, or neither."""
    net = Net()
    x = net.input("x", "n", 8)
    for step, function in zip((*steps, last), between, strict=False):
        x = net.op("Log", net.op("Abs", x)) if function == "Log" else net.op(function, x)
        x = CASES[step](net, net.op("Tanh", x) if function == "Log" else x)
    model = dynamic(net.model(x), {"x": (spans(6, 11), 8)})
    bucket = whole_bucket(model)
    for n in (6, 7, 9, 11):
        check(model, bucket, {"n": n})


@pytest.fixture(scope="module")
def prepared() -> Callable[[str], tuple[DynamicModel, PaddedModel]]:
    made: dict[str, tuple[DynamicModel, PaddedModel]] = {}

    def of(name: str) -> tuple[DynamicModel, PaddedModel]:
        if name not in made:
            write, shapes = MODELS[name]
            model = dynamic(write(), shapes)
            made[name] = model, whole_bucket(model)
        return made[name]

    return of


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_bucket_computes_the_model_at_any_shape(
    name: str, data: st.DataObject, prepared: Callable[[str], tuple[DynamicModel, PaddedModel]]
) -> None:
    model, bucket = prepared(name)
    point = {e.name: data.draw(st.integers(e.low, e.high)) for e in model.shapes.extents}
    check(model, bucket, point, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("name", MODELS)
def test_a_bucket_computes_the_model_at_its_ends(
    name: str, prepared: Callable[[str], tuple[DynamicModel, PaddedModel]]
) -> None:
    model, bucket = prepared(name)
    check(model, bucket, {e.name: e.low for e in model.shapes.extents})
    check(model, bucket, {e.name: e.high for e in model.shapes.extents})


def test_masks_are_written_only_where_padding_would_reach_other_elements() -> None:
    """One for the softmax, and one for the mean of the rows."""
    bucket = whole_bucket(dynamic(encoder(), MODELS["encoder"][1]))
    masks = [n for n in bucket.model.proto.graph.node if n.op_type == "Where"]
    assert len(masks) == 2


def test_a_mask_that_is_zero_at_padding_is_enough() -> None:
    bucket = whole_bucket(dynamic(hidden_sum(), MODELS["hidden sum"][1]))
    assert "Where" not in [n.op_type for n in bucket.model.proto.graph.node]


def test_a_batch_needs_no_mask() -> None:
    bucket = whole_bucket(dynamic(vision(), MODELS["vision"][1]))
    assert "Where" not in [n.op_type for n in bucket.model.proto.graph.node]
