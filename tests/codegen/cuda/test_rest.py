"""What is left to TVM on a GPU: elements that are moved go in vectors, and arrive as before."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from mcfuser.codegen.cuda import rest

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
Make = Callable[..., relax.Expr]


def unscheduled(make: Make, *shapes: tuple[int, ...], dtype: str = "float16") -> tirx.PrimFunc:
    """The loops of a model that makes its result of some inputs."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(make(*inputs))
        builder.emit_func_output(out)
    t = relax.transform
    passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FuseOps(), t.FuseTIR()]
    module = tvm.transform.Sequential(passes)(builder.get())
    (function,) = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    return function


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
        (beside, [(1, 4, 60, 64), (1, 4, 4, 64)], "bool", [16]),
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
