"""What is left to TVM on a GPU: elements that are moved go in vectors, and arrive as before; bools
go one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir import dlight

from mcfuser.codegen.cuda import rest
from tests.support.gpu_functions import TARGET, Make, source, unscheduled


def vectors(function: tirx.PrimFunc) -> list[int]:
    """Elements of the vectors that the schedule moves."""
    schedule = rest.in_vectors(function, TARGET, False)
    if schedule is None:
        return []
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    return [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]


def beside(*values: relax.Expr) -> relax.Expr:
    return relax.op.concat([*values], axis=2)


@pytest.mark.parametrize(
    ("make", "shapes", "dtype", "lanes"),
    [
        (beside, [(1, 4, 60, 64), (1, 4, 4, 64)], "float16", [8]),
        (beside, [(1, 4, 60, 64), (1, 4, 4, 64)], "float32", [4]),
        (beside, [(1, 4, 60, 64), (1, 4, 4, 64)], "int8", [16]),
        (lambda x: relax.op.strided_slice(x, [1], [4], [68]), [(4, 128, 64)], "float16", [8]),
        (lambda x: relax.op.broadcast_to(x, (4, 64, 64)), [(64, 64)], "float16", [8]),
        (lambda x: relax.op.broadcast_to(x, (64, 4, 64)), [(64, 4, 1)], "float16", [8]),
    ],
)
def test_elements_that_are_moved_go_in_vectors(
    make: Make, shapes: list[tuple[int, ...]], dtype: str, lanes: list[int]
) -> None:
    assert vectors(unscheduled(make, *shapes, dtype=dtype)) == lanes


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda x: relax.op.permute_dims(x, [0, 2, 1]), [(4, 64, 64)]),
        (lambda x: relax.op.strided_slice(x, [2], [0], [128], [2]), [(4, 64, 128)]),
        (lambda x, y: relax.op.add(x, y), [(4, 64, 64), (64,)]),
        (beside, [(1, 4, 60, 63), (1, 4, 4, 63)]),
        (beside, [(1, 1, 60, 64), (1, 1, 4, 64)]),
        (lambda x: relax.op.flip(x, axis=2), [(4, 64, 64)]),
        (lambda x: relax.op.sum(x, axis=[0]), [(4, 256, 64)]),
    ],
    ids=["transposed", "strided", "computed", "ragged", "small", "reversed", "reduced"],
)
def test_others_are_left_to_tvm(make: Make, shapes: list[tuple[int, ...]]) -> None:
    assert not vectors(unscheduled(make, *shapes))


def test_bools_that_are_moved_are_left_to_tvm() -> None:
    """TVM has no name for 16 of them."""
    shapes = [(1, 4, 60, 64), (1, 4, 4, 64)]
    assert not vectors(unscheduled(beside, *shapes, dtype="bool"))
    source(beside, *((s, "bool") for s in shapes))


def masked(x: relax.Expr, y: relax.Expr, *masks: relax.Expr) -> relax.Expr:
    both = masks[0] if len(masks) == 1 else relax.op.logical_and(*masks)
    return relax.op.where(both, relax.op.matmul(x, y), relax.const(-1.0, "float32"))


def summed(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
    return relax.op.sum(relax.op.where(mask, x, relax.const(0.0, "float32")), axis=[1])


SQUARE = ((2, 128, 128), "float32")
WIDE = ((64, 4096), "float32")


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (masked, [SQUARE, SQUARE, ((2, 128, 128), "bool")]),
        (masked, [SQUARE, SQUARE, ((2, 128, 128), "bool"), ((1, 1, 128), "bool")]),
        (summed, [WIDE, ((64, 4096), "bool")]),
        (lambda x, y: relax.op.less(relax.op.matmul(x, y), x), [SQUARE, SQUARE]),
        (lambda x, y: relax.op.logical_or(x, y), [((64, 4096), "bool")] * 2),
    ],
    ids=["masked product", "two masks", "masked sum", "compared product", "either"],
)
def test_no_two_bools_are_read_or_written_at_once(
    make: Make, inputs: list[tuple[tuple[int, ...], str]]
) -> None:
    """TVM takes two for a `ushort2`, which has four bytes: each of two conditions of a masked
    product held where that of either neighbour did."""
    text = source(make, *inputs)
    bools = set(re.findall(r"bool\* __restrict__ (\w+)", text))
    assert bools
    for name in bools:
        assert f"{name}[" in text
        assert not re.search(rf"\(\w+\*\)\({name}", text)


def test_without_the_pass_neighbours_share_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is one; where this fails, TVM has mended it."""
    nothing = tvm.transform.module_pass(lambda module, context: module, opt_level=0)
    monkeypatch.setattr(rest, "bools_one_by_one", lambda: nothing)
    assert "*(ushort2*)(x2_ptr" in source(masked, SQUARE, SQUARE, ((2, 128, 128), "bool"))


def test_a_rule_that_raises_leaves_a_function_to_the_next_one() -> None:
    """TVM takes a depthwise convolution for a vector by a matrix, and stumbles over it."""

    def depthwise(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.nn.silu(relax.op.nn.conv1d(x, w, groups=256))

    inputs = [((1, 256, 79), "float32"), ((256, 1, 31), "float32")]
    function = unscheduled(depthwise, *(shape for shape, _ in inputs), dtype="float32")
    rule = dlight.gpu.GEMV()
    with TARGET:
        with pytest.raises(AttributeError):  # where it does not, TVM has mended it
            rule.apply(function, TARGET, False)
        assert rest.tried(rule).apply(function, TARGET, False) is None
    assert "__global__" in source(depthwise, *inputs)


def test_a_rule_whose_schedule_tvm_cannot_lower_leaves_a_function_to_the_next_one() -> None:
    """As TVM's for a convolution in groups, dilated, is."""

    def dilated(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.nn.conv2d(x, w, groups=2, dilation=(2, 1))

    inputs = [((2, 6, 67, 129), "float32"), ((12, 3, 3, 3), "float32")]
    assert "__global__" in source(dilated, *inputs)


@pytest.mark.parametrize(("width", "fits"), [(672, True), (960, False)])
def test_a_rule_that_takes_too_much_memory_leaves_a_function_to_the_next_one(
    width: int, fits: bool
) -> None:
    """NVIDIA's compiler refuses a kernel whose threads share more than 48 KiB."""

    def gate(w: relax.Expr, x: relax.Expr) -> relax.Expr:
        return relax.op.matmul(w, x)

    shapes = (240, width), (1, width, 1)
    function = unscheduled(gate, *shapes, dtype="float32")
    rule = dlight.gpu.GEMV()
    with TARGET:
        taken = rule.apply(function, TARGET, False)
        assert (rest.shared_bytes(taken) <= rest.SHARED) is fits
        assert rest.shared_bytes(taken) == 16 * width * 4
        assert (rest.tried(rule).apply(function, TARGET, False) is not None) is fits
    assert "__global__" in source(gate, *((shape, "float32") for shape in shapes))


def test_no_rule_is_asked_about_a_function_that_reduces_nothing() -> None:
    """Each would inline all of its blocks first."""
    asked: list[tirx.PrimFunc] = []

    def seen(function: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> None:
        asked.append(function)

    rule = rest.tried(dlight.ScheduleRule.from_callable("Seen")(seen))
    sums = unscheduled(lambda x: relax.op.sum(relax.op.exp(x), axis=[1]), (64, 4096))
    for function in (unscheduled(lambda x, y: relax.op.exp(x) + y, (64, 64), (64, 64)), sums):
        assert rule.apply(function, TARGET, False) is None
    assert asked == [sums]


def test_a_function_has_few_of_many_steps_that_are_put_together() -> None:
    def steps(x: relax.Expr) -> relax.Expr:
        parts = [relax.op.strided_slice(x, [0], [i], [i + 1]) for i in range(100)]
        return relax.op.concat(parts, axis=0)

    most = rest.FUSED["relax.FuseOps.max_depth"]
    assert max(blocks(steps, (100, 64), {})) > most >= max(blocks(steps, (100, 64), rest.FUSED))


def blocks(make: Make, shape: tuple[int, ...], config: dict[str, int]) -> list[int]:
    """The blocks of each function of a model, fused under a configuration of TVM's."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(x)))
        builder.emit_func_output(out)
    t = relax.transform
    with tvm.transform.PassContext(config=config):
        passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FuseOps(), t.FuseTIR()]
        module = tvm.transform.Sequential(passes)(builder.get())
    made = [s_tir.Schedule(f) for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    return [len(s.get_child_blocks(s.get_sblock("root"))) for s in made]


def test_the_rules_are_those_of_tvm_in_its_order() -> None:
    *_, last = rest.cuda.legalize_passes(TARGET)
    theirs = [type(rule).__name__ for rule in last.rules]
    assert [*(type(rule).__name__ for rule in rest.RULES), "Fallback"] == theirs


def test_what_is_stored_under_a_condition_is_left_to_tvm() -> None:
    lines = [
        "@T.prim_func(s_tir=True)",
        "def main(x: T.Buffer((64, 1024), 'float16'), y: T.Buffer((64, 1024), 'float16')):",
        "    for i, j in T.grid(64, 1024):",
        "        with T.sblock('some'):",
        "            a, b = T.axis.remap('SS', [i, j])",
        "            if a < 7:",
        "                y[a, b] = x[a, b]",
    ]
    assert rest.in_vectors(tvm.script.from_source("\n".join(lines)), TARGET, False) is None


def test_vectors_arrive_where_single_elements_did() -> None:
    """The schedule without its threads, run on a CPU."""
    function = unscheduled(beside, (2, 3, 40, 64), (2, 3, 5, 64), dtype="float32")
    schedule = rest.in_vectors(function, TARGET, False)
    assert schedule is not None
    text = schedule.mod.script().replace("private=True, ", "")
    text, count = re.subn(r'T\.thread_binding\((.*), thread="\w+\.x"\)', r"T.serial(\1)", text)
    assert count == 2
    run = tvm.compile(tvm.script.from_source(text), target="llvm")
    rng = np.random.default_rng(0)
    one, two = (rng.random((2, 3, n, 64), np.float32) for n in (40, 5))
    given = [tvm.runtime.tensor(a) for a in (one, two, np.zeros((2, 3, 45, 64), np.float32))]
    run["main"](*given)
    np.testing.assert_array_equal(given[-1].numpy(), np.concatenate([one, two], axis=2))
