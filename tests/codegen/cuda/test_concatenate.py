"""Parts put beside each other on a GPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from mcfuser.codegen.cuda.concatenate import MOST, SMALL, VECTORS, joined
from mcfuser.codegen.cuda.kernel import SourceOperator
from mcfuser.codegen.cuda.operators import with_operators
from tests.support.cuda_blocks import computed, numpy_type
from tests.support.cuda_on_host import needs_compiler
from tests.support.one_call import one_call, the_call


def of_parts(shapes: list[tuple[int, ...]], axis: int, dtype: str) -> SourceOperator | None:
    types = [relax.TensorType(s, dtype) for s in shapes]
    return joined(the_call(types, lambda *parts: relax.op.concat([*parts], axis=axis)))


def channels(*counts: int, places: tuple[int, ...] = (2, 40, 41)) -> list[tuple[int, ...]]:
    return [(*places, n) for n in counts]


@needs_compiler
@pytest.mark.parametrize(
    ("shapes", "axis", "dtype", "width"),
    [
        (channels(64, 64), 3, "float16", 16),
        (channels(640, 320, places=(1, 8, 9)), -1, "float16", 16),
        (channels(8, 24, 16), 3, "bfloat16", 16), (channels(4, 12), 3, "float16", 8),
        (channels(6, 10), 3, "float16", 4), (channels(2, 14), 3, "float32", 8),
        (channels(16, 48), 3, "int8", 16), (channels(1, 15), 3, "int32", 0),
        ([(6, 3, 40, 64), (6, 5, 40, 64)], 1, "float32", 16),
        (channels(*(8 for _ in range(MOST)), places=(3, 60)), 2, "float16", 16),
    ],
)  # fmt: skip
def test_parts_are_where_numpy_puts_them(
    shapes: list[tuple[int, ...]], axis: int, dtype: str, width: int, tmp_path: Path
) -> None:
    made = of_parts(shapes, axis, dtype)
    if not width:
        assert made is None, "elements would be moved one by one"
        return
    assert made is not None and VECTORS[width] in made.text("kernel")
    rng = np.random.default_rng(0)
    parts = [rng.integers(-99, 99, s).astype(numpy_type(dtype)) for s in shapes]
    (found,) = computed(made, parts, tmp_path)
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=axis))


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(1, 64, 32, 32), (1, 64, 32, 32)], 1), ([(64, 512), (64, 512)], 0),
        (channels(3, 5), 3), (channels(8, 8, places=(2, SMALL // 64 - 1, 2)), 3),
        (channels(*(8 for _ in range(MOST + 1))), 3),
    ],
    ids=["one picture by lines", "whole", "odd", "small", "many"],
)  # fmt: skip
def test_others_are_left(shapes: list[tuple[int, ...]], axis: int) -> None:
    assert of_parts(shapes, axis, "float16") is None


def test_a_module_launches_it_with_all_parts() -> None:
    types = [relax.TensorType(s, "float16") for s in channels(64, 32)]
    module = one_call(types, lambda *parts: relax.op.concat([*parts], axis=3))
    after, (kernel,) = with_operators(module)
    (call,) = (b.value for b in after["main"].body.blocks[0].bindings)
    assert [a.name for a in call.args[1].fields] == ["x0", "x1"]
    assert kernel.functions[0][1] == ("handle",) * 3
