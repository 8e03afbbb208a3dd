"""Reductions without a chain on a GPU: a result has the threads of a block, or of several."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import relax, s_tir, tirx
from tvm.relax import op
from tvm.s_tir import dlight

from mcfuser.codegen.cuda import rest
from mcfuser.codegen.cuda.reduced import combined, few_results, in_blocks
from tests.support.gpu_functions import TARGET, Make, source, unscheduled

Shape = tuple[int, ...]


def loops(schedule: s_tir.Schedule) -> list[list[tuple[str, int]]]:
    """The loops of each block: the threads or blocks that share it, or "", and its extent."""

    def told(loop: tirx.For) -> tuple[str, int]:
        bound = loop.thread_binding
        return ("" if bound is None else bound.thread_tag.removesuffix("Idx.x"), int(loop.extent))

    inside = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [[told(schedule.get(x)) for x in schedule.get_loops(b)] for b in inside]


def serial(schedule: s_tir.Schedule, *given: NDArray[Any]) -> None:
    """Runs a schedule without its threads on a CPU; the last array is written."""
    text = schedule.mod.script().replace("private=True, ", "")
    text, count = re.subn(r'T\.thread_binding\((.*), thread="\w+\.x"\)', r"T.serial(\1)", text)
    assert count
    run = tvm.compile(tvm.script.from_source(text), target="llvm")
    tensors = [tvm.runtime.tensor(a) for a in given]
    run["main"](*tensors)
    given[-1][...] = tensors[-1].numpy()


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "expected"),
    [
        (lambda x: op.max(x), (3, 50, 111), "int64", np.max),
        (lambda x: op.max(x, axis=[1]), (4, 5000), "int32", lambda x: x.max(1)),
        (lambda x: op.min(x, axis=[0]), (100, 7), "int64", lambda x: x.min(0)),
        (lambda x: op.max(x, axis=[1]), (1, 70_000), "int64", lambda x: x.max(1)),
        (lambda x: op.min(x, axis=[1]), (3, 98_415), "int32", lambda x: x.min(1)),
        (lambda x: op.sum(x, axis=[1]), (2, 65_537), "int64", lambda x: x.sum(1)),
        (lambda x: op.max(x, axis=[0, 2]), (40, 3, 900), "int64", lambda x: x.max((0, 2))),
        (lambda x: op.sum(x), (300, 1000), "int64", np.sum),
        (lambda x: op.prod(x, axis=[1]), (4, 33), "float64", lambda x: x.prod(1)),
        (lambda x: op.argmax(x), (70_000,), "int32", np.argmax),
        (lambda x: op.argmax(x, axis=1), (2, 40_000), "int32", lambda x: x.argmax(1)),
    ],
    ids=["max", "max of rows", "min of columns", "max of a long row", "odd parts", "a prime",
         "max of both", "sum", "product", "place", "places"],
)  # fmt: skip
def test_results_are_those_of_one_thread_each(
    make: Make, shape: Shape, dtype: str, expected: Any
) -> None:
    """Largest values come several times, so that the first place is asked for."""
    schedule = in_blocks(unscheduled(make, shape, dtype=dtype), TARGET, False)
    assert schedule is not None and combined(schedule)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, shape).astype(dtype) if dtype != "float64" else rng.random(shape) + 0.5
    wanted = np.asarray(expected(x))
    found = np.zeros(wanted.shape, wanted.dtype)
    serial(schedule, x, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "shape", "shared"),
    [
        (lambda x: op.max(x), (3, 40), [("block", 1), ("", 1), ("thread", 128)]),
        (lambda x: op.max(x, axis=[1]), (4, 5000), [("block", 4), ("", 5), ("thread", 1024)]),
    ],
    ids=["one", "several"],
)
def test_a_result_has_the_threads_of_a_block(
    make: Make, shape: Shape, shared: list[tuple[str, int]]
) -> None:
    schedule = in_blocks(unscheduled(make, shape, dtype="int64"), TARGET, False)
    assert schedule is not None
    assert loops(schedule) == [shared]


def test_many_elements_are_shared_by_blocks_whose_parts_one_combines() -> None:
    schedule = in_blocks(unscheduled(op.max, (1, 160, 512), dtype="int64"), TARGET, False)
    assert schedule is not None
    parts, together = loops(schedule)
    assert parts == [("block", 5), ("", 16), ("thread", 1024)]
    assert together == [("block", 1), ("", 1), ("thread", 8)]


@settings(max_examples=12)
@given(results=st.integers(1, 9), elements=st.integers(32, 200_000))
def test_threads_combine_what_they_found_whatever_the_extents(results: int, elements: int) -> None:
    """A condition on a part's block has TVM leave the threads to write over each other: a maximum
    of 70,000 numbers was one of any of them."""
    function = unscheduled(lambda x: op.max(x, axis=[1]), (results, elements), dtype="int64")
    schedule = in_blocks(function, TARGET, False)
    assert schedule is not None and combined(schedule)


def in_uneven_parts() -> tuple[tirx.PrimFunc, s_tir.Schedule]:
    """A maximum in parts of which the last ends early, as TVM splits a loop in three."""
    function = unscheduled(lambda x: op.max(x, axis=[1]), (1, 70_000), dtype="int64")
    schedule = s_tir.Schedule(function)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    part, _, along = schedule.split(schedule.get_loops(block)[-1], factors=[4, None, 1024])
    partial = schedule.rfactor(part, factor_axis=0)
    *across, _, along = schedule.get_loops(partial)
    schedule.bind(schedule.fuse(*across), "blockIdx.x")
    schedule.bind(along, "threadIdx.x")
    return function, schedule


def test_threads_that_write_over_each_other_are_seen() -> None:
    function, schedule = in_uneven_parts()
    assert not combined(schedule)
    assert combined(s_tir.Schedule(function))


def test_a_rule_whose_threads_write_over_each_other_leaves_a_function_to_the_next_one() -> None:
    function, schedule = in_uneven_parts()
    rule = dlight.ScheduleRule.from_callable("Uneven")(lambda *_: schedule)
    with TARGET:
        assert rule.apply(function, TARGET, False) is schedule
        assert rest.tried(rule).apply(function, TARGET, False) is None


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: op.max(x, axis=[1]), (1 << 15, 64)),  # threads enough
        (lambda x: op.max(x, axis=[1]), (64, 16)),  # next to nothing to share
        (lambda x: op.add(x, x), (64, 64)),
        (lambda x: op.cumsum(x, axis=1), (4, 64)),
    ],
    ids=["many results", "few elements", "elementwise", "scan"],
)
def test_others_are_left_to_tvm(make: Make, shape: Shape) -> None:
    try:
        function = unscheduled(make, shape, dtype="int64")
    except ValueError:  # a scan is no loops, but a call
        return
    assert in_blocks(function, TARGET, False) is None


@pytest.mark.parametrize(
    ("make", "shapes", "expected"),
    [
        (op.sum, [(4, 4096)], np.sum),
        (lambda x: op.sum(x, axis=[0]), [(4096, 7)], lambda x: x.sum(0)),
        (lambda x: op.sum(x, axis=[1]), [(2, 4096, 3)], lambda x: x.sum(1)),
        (op.matmul, [(4096,), (4096, 7)], np.matmul),
    ],
    ids=["one", "columns", "columns of two", "a vector by columns"],
)
def test_sums_of_few_columns_are_shared_before_tvm_is_asked(
    make: Make, shapes: list[Shape], expected: Any
) -> None:
    """Its rule takes 92 us for seven columns of 33,333 numbers on an H200, where this takes 6."""
    schedule = few_results(unscheduled(make, *shapes, dtype="float32"), TARGET, False)
    assert schedule is not None and combined(schedule)
    rng = np.random.default_rng(0)
    given = [rng.integers(-9, 10, s).astype(np.float32) for s in shapes]
    wanted = np.asarray(expected(*given))
    found = np.zeros(wanted.shape, np.float32)
    serial(schedule, *given, found)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("axis", "shape"), [(1, (4, 4096)), (0, (4096, 512))], ids=["rows", "many columns"]
)
def test_sums_of_rows_and_of_many_columns_are_left_to_tvm(axis: int, shape: Shape) -> None:
    """Its rule for them is as good."""
    function = unscheduled(lambda x: op.sum(x, axis=[axis]), shape, dtype="float32")
    assert few_results(function, TARGET, False) is None


@pytest.mark.parametrize("keepdims", [False, True])
def test_the_pipeline_has_threads_share_what_is_left_of_a_model(keepdims: bool) -> None:
    """As a half-precision T5 asks whether any of its values is infinite."""

    def asked(x: relax.Expr) -> relax.Expr:
        marked = op.astype(op.isinf(x), "int64")
        return op.astype(op.max(marked, keepdims=keepdims), "bool")

    text = source(asked, ((1, 160, 512), "float16"))
    assert [int(n) for n in re.findall(r"for \(int \w+ = 0; \w+ < (\d+);", text)] == [16]


def test_the_rules_stand_around_those_of_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's own take a single result before these would, and its last rule takes everything."""
    seen: list[str] = []
    monkeypatch.setattr(rest, "tried", lambda rule: seen.append(type(rule).__name__) or rule)
    with TARGET:
        rest.pipeline(TARGET)
    assert seen[0] != seen[-1]
    assert seen[1:-1] == [type(rule).__name__ for rule in rest.RULES]
