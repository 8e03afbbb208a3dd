"""Loop, Scan and SequenceMap are the nodes of their steps, and compute what onnxruntime does."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.load import load
from mcfuser.graph.read import name_nodes
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import run

X = {"x": np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)}
LOOPS = ("Loop", "Scan", "SequenceMap")


def model(graph: str) -> onnx.ModelProto:
    """A model of opset 17, from onnx's form for people."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    name_nodes(proto.graph)
    return proto


def agree(proto: onnx.ModelProto, given: Mapping[str, np.ndarray] = X) -> onnx.ModelProto:
    """Asserts that the model has no loop once it is rewritten, computes what it did, and loads."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    assert rewrite(made)
    assert not {n.op_type for n in made.graph.node} & {*LOOPS}
    for found, expected in zip(run(made, given), run(proto, given), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    load(proto.SerializeToString(), {})
    return made


def refusal(proto: onnx.ModelProto, limits: ModelLimits | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        rewrite(proto, limits or ModelLimits())
    return str(caught.value)


def counted(steps: int, going: str = "yes") -> onnx.ModelProto:
    """x times 1.5 after each step, and each step's value plus its number."""
    return model(f"""g (float[4, 3] x) => (float[M, N] y, float[S, M, N] rows) {{
        steps = Constant<value = int64 {{{steps}}}>()
        yes = Constant<value = bool {{1}}>()
        y, rows = Loop(steps, {going}, x) <body = b (int64 i, bool c, float[M, N] v)
            => (bool goes, float[M, N] next, float[M, N] row) {{
            half = Constant<value = float {{0.5}}>()
            goes = Identity(c)
            more = Mul(v, half)
            next = Add(v, more)
            number = Cast<to = 1>(i)
            row = Add(next, number)
        }}>
    }}""")


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("going", ["yes", ""])
def test_a_number_of_steps(steps: int, going: str) -> None:
    made = agree(counted(steps, going))
    assert sum(n.op_type == "Mul" for n in made.graph.node) == steps


def test_constants_of_a_step_are_written_once() -> None:
    made = agree(counted(5))
    halves = [w for w in made.graph.initializer if w.name.endswith("/half")]
    assert len(halves) == 1


def test_no_step_leaves_the_values_as_they_are() -> None:
    proto = counted(0)
    assert "no step" in refusal(proto)
    del proto.graph.output[1:]
    loop = proto.graph.node[-1]
    del loop.output[1:]
    body = loop.attribute[0].g
    del body.output[2:]
    agree(proto)


def test_a_condition_that_counts_ends_the_loop() -> None:
    """The number of steps follows from the condition alone, as of a while loop."""
    made = agree(
        model("""g (float[4, 3] x) => (float[M, N] y, int64 last) {
        zero = Constant<value = int64 {0}>()
        limit = Constant<value = int64 {7}>()
        start = Less(zero, limit)
        last, y = Loop("", start, zero, x) <body = b (int64 i, bool c, int64 at, float[M, N] v)
            => (bool goes, int64 after, float[M, N] next) {
            two = Constant<value = int64 {2}>()
            after = Add(at, two)
            goes = Less(after, limit)
            next = Add(v, x)
        }>
    }""")
    )
    assert sum(n.op_type == "Add" and "x" in n.input for n in made.graph.node) == 4


def test_steps_may_be_counted_in_floats() -> None:
    """As tf2onnx and Paddle's exporter compare whole numbers."""
    made = agree(
        model("""g (float[4, 3] x) => (float[M, N] y, float[S, P, Q] rows) {
        zero = Constant<value = float[1] {0.0}>()
        shape = Shape(x)
        first = Constant<value = int64 {0}>()
        rows_there = Gather(shape, first)
        limit = Cast<to = 1>(rows_there)
        start = Less(zero, limit)
        last, y, rows = Loop("", start, zero, x) <body = b
            (int64 i, bool[1] c, float[1] at, float[M, N] v)
            => (bool[1] goes, float[1] after, float[M, N] next, float[P, Q] row) {
            one = Constant<value = float[1] {1.0}>()
            after = Add(at, one)
            goes = Less(after, limit)
            next = Add(v, x)
            row = Identity(next)
        }>
    }""")
    )
    assert sum(n.op_type == "Add" and "x" in n.input for n in made.graph.node) == 4


LATE = """g (float[4, 3] x, float limit) => (float[M, N] y, float total) {{
    steps = Constant<value = int64 {{6}}>()
    sum = ReduceSum<keepdims = 0>(x)
    start = Less(sum, limit)
    y, total = Loop({most}, start, x, sum) <body = b (int64 i, bool c, float[M, N] v, float t)
        => (bool goes, float[M, N] next, float after) {{
        two = Constant<value = float {{2.0}}>()
        {line}
        after = ReduceSum<keepdims = 0>(next)
        goes = Less(after, limit)
    }}>
}}"""


@pytest.mark.parametrize("limit", [-1e9, 10.0, 25.0, 1e9])
def test_a_condition_of_run_time_keeps_the_values_from_the_end_on(limit: float) -> None:
    given = {"x": np.abs(X["x"]), "limit": np.array(limit, np.float32)}
    agree(model(LATE.format(most="steps", line="next = Mul(v, two)")), given)


def test_what_only_run_time_limits_is_refused() -> None:
    words = refusal(model(LATE.format(most='""', line="next = Mul(v, two)")), ModelLimits(nodes=99))
    assert "written out step by step" in words


@pytest.mark.parametrize("limit", [-1e9, 10.0, 25.0, 1e9])
def test_a_condition_of_run_time_may_count_as_well(limit: float) -> None:
    proto = model("""g (float[4, 3] x, float limit) => (float[M, N] y, int64 made) {
        forever = Constant<value = int64 {9223372036854775807}>()
        zero = Constant<value = int64 {0}>()
        sum = ReduceSum<keepdims = 0>(x)
        start = Less(sum, limit)
        y, made = Loop(forever, start, x, zero) <body = b (int64 i, bool c, float[M, N] v, int64 at)
            => (bool goes, float[M, N] next, int64 after) {
            one = Constant<value = int64 {1}>()
            five = Constant<value = int64 {5}>()
            next = Add(v, v)
            after = Add(at, one)
            total = ReduceSum<keepdims = 0>(next)
            small = Less(total, limit)
            few = Less(after, five)
            goes = And(small, few)
        }>
    }""")
    made = agree(proto, {"x": np.abs(X["x"]), "limit": np.array(limit, np.float32)})
    assert sum(n.op_type == "ReduceSum" for n in made.graph.node) == 6


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (3, "divisor = Sub(i, one)\n part = Div(whole, divisor)"),
        (1, "part = Div(whole, whole)"),
        (1, "part = GatherElements(whole, whole)"),
    ],
)
def test_a_step_after_the_end_cannot_end_the_program(number: int, line: str) -> None:
    written = f"""whole = Cast<to = 7>(v)
        one = Constant<value = int64 {{{number}}}>()
        {line}
        next = Cast<to = 1>(part)"""
    words = refusal(model(LATE.format(most="steps", line=written)))
    assert re.search(r"\((Div|GatherElements)\) of a step after the last one could end", words)


@pytest.mark.parametrize(("first", "allowed"), [(0, True), (-1, True), (1, False), (-5, False)])
def test_a_step_after_the_end_may_write_where_its_tensor_has_rows(
    first: int, allowed: bool
) -> None:
    """There are four rows; the position is the number of the step, counted from `first`."""
    line = f"""first = Constant<value = int64[1, 1] {{{first}}}>()
        row = Add(first, i)
        wide = Constant<value = int64[2] {{1, 3}}>()
        rows = Expand(row, wide)
        zero = Constant<value = int64[1] {{0}}>()
        one_row = Gather<axis = 0>(v, zero)
        next = ScatterElements<axis = 0>(v, rows, one_row)"""
    proto = model(LATE.format(most="steps", line=line).replace("int64 {6}", "int64 {4}"))
    given = {"x": np.abs(X["x"]), "limit": np.array(1e9, np.float32)}
    if allowed:
        agree(proto, given)
    else:
        assert "(ScatterElements) of a step after the last one" in refusal(proto)


def test_a_step_after_the_end_may_divide_by_what_is_not_zero() -> None:
    line = """whole = Cast<to = 7>(v)
        two_whole = Constant<value = int64 {2}>()
        part = Div(whole, two_whole)
        rest = Cast<to = 1>(part)
        next = Sub(v, rest)"""
    given = {"x": np.abs(X["x"]) * 9, "limit": np.array(30, np.float32)}
    agree(model(LATE.format(most="steps", line=line)), given)


def test_an_output_of_every_step_needs_a_known_number_of_them() -> None:
    proto = model(LATE.format(most="steps", line="next = Mul(v, two)"))
    loop = proto.graph.node[-1]
    loop.attribute[0].g.output.append(loop.attribute[0].g.output[1])
    loop.output.append("rows")
    assert "row for each step" in refusal(proto)


def test_a_number_of_steps_of_run_time_is_refused() -> None:
    proto = model("""g (float[4, 3] x, int64 n) => (float[M, N] y) {
        y = Loop(n, "", x) <body = b (int64 i, bool c, float[M, N] v)
            => (bool c, float[M, N] next) { next = Add(v, x) }>
    }""")
    words = refusal(proto)
    assert words.startswith("operator 'Loop' of domain 'ai.onnx', opset 17 (node '")
    assert "the largest number of its steps is known only at run time" in words


def test_loops_in_loops_and_branches_in_loops() -> None:
    agree(
        model("""g (float[4, 3] x) => (float[M, N] y) {
        three = Constant<value = int64 {3}>()
        y = Loop(three, "", x) <body = b (int64 i, bool c, float[M, N] v)
            => (bool c, float[M, N] next) {
            one = Constant<value = int64 {1}>()
            odd = Equal(i, one)
            chosen = If(odd) <then_branch = t () => (float[M, N] r) { r = Neg(v) },
                              else_branch = e () => (float[M, N] r) { r = Add(v, x) }>
            next = Loop(i, "", chosen) <body = d (int64 i, bool c, float[M, N] v)
                => (bool c, float[M, N] after) {
                number = Cast<to = 1>(i)
                more = Add(v, number)
                after = Add(more, chosen)
            }>
        }>
    }""")
    )


def test_shapes_that_grow_from_step_to_step() -> None:
    made = agree(
        model("""g (float[4, 3] x) => (float[M, N] y) {
        three = Constant<value = int64 {3}>()
        y = Loop(three, "", x) <body = b (int64 i, bool c, float[M, N] v)
            => (bool c, float[P, N] next) { next = Concat<axis = 0>(v, x) }>
    }""")
    )
    assert sum(n.op_type == "Concat" for n in made.graph.node) == 3


def test_a_list_that_a_loop_fills() -> None:
    agree(
        model("""g (float[4, 3] x) => (float[M, N, P] y) {
        four = Constant<value = int64 {4}>()
        none = SequenceEmpty<dtype = 1>()
        all = Loop(four, "", none) <body = b (int64 i, bool c, seq(float) s)
            => (bool c, seq(float) more) {
            row = Gather<axis = 0>(x, i)
            twice = Add(row, row)
            more = SequenceInsert(s, twice)
        }>
        y = ConcatFromSequence<axis = 1, new_axis = 1>(all)
    }""")
    )


def test_endless_loops_and_large_steps_meet_a_limit() -> None:
    endless = model("""g (float[4, 3] x) => (float[M, N] y) {
        y = Loop("", "", x) <body = b (int64 i, bool c, float[M, N] v)
            => (bool c, float[M, N] next) { next = Add(v, x) }>
    }""")
    words = refusal(endless, ModelLimits(nodes=100))
    assert "written out step by step" in words
    assert "the limit is 100" in words
    many = counted(1 << 40)
    assert "the limit is 100" in refusal(many, ModelLimits(nodes=100))
    assert "bytes" in refusal(counted(1000), ModelLimits(model_bytes=10_000))


SCAN = """g (float[4, 3] x, float[4, 3] z, float[3] s) => (float[N] last, float[A, B] rows,
    float[C, D] turned) {
    last, rows, turned = Scan<num_scan_inputs = 2, scan_input_axes = [0, -2],
        scan_input_directions = [0, 1], scan_output_axes = [-1, 0],
        scan_output_directions = [0, 1],
        body = b (float[N] state, float[N] a, float[N] b)
            => (float[N] next, float[N] one, float[N] two) {
            both = Mul(a, b)
            next = Add(state, both)
            one = Identity(next)
            two = Sub(state, a)
        }>(s, x, z)
}"""


def test_a_scan_of_two_inputs_both_ways() -> None:
    rng = np.random.default_rng(5)
    given = {**X, "z": X["x"][::-1] * 2, "s": rng.standard_normal(3).astype(np.float32)}
    agree(model(SCAN), given)


def test_a_scan_along_an_inner_axis() -> None:
    agree(
        model("""g (float[4, 3] x) => (float[N] last, float[A, B] rows) {
        zero = Constant<value = float[4] {0., 0., 0., 0.}>()
        last, rows = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = b (float[N] state, float[N] a) => (float[N] next, float[N] row) {
                next = Add(state, a)
                row = Exp(next)
            }>(zero, x)
    }""")
    )


def test_inputs_of_unequal_extents_are_refused() -> None:
    proto = model(SCAN)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 5
    assert "the inputs that it scans have [4, 5] positions" in refusal(proto)


def test_a_graph_for_each_tensor_of_a_sequence() -> None:
    agree(
        model("""g (float[4, 3] x) => (float[M, N] y) {
        two = Constant<value = int64 {2}>()
        halves = SplitToSequence<axis = 0>(x, two)
        done = SequenceMap(halves, halves, x) <body = b
            (float[M, N] a, float[M, N] b, float[P, N] c) => (float[Q, N] d) {
            sum = Add(a, b)
            d = Concat<axis = 0>(sum, c)
        }>
        y = ConcatFromSequence<axis = 0>(done)
    }""")
    )
