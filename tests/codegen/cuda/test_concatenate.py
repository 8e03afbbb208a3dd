"""Parts put beside each other on a GPU, beside NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from mcfuser.codegen.cuda.concatenate import MOST, SMALL, VECTORS, copied_parts, joined
from mcfuser.codegen.cuda.kernel import SourceOperator
from mcfuser.codegen.cuda.operators import with_operators
from tests.support.cuda_blocks import computed, numpy_type
from tests.support.cuda_on_host import needs_compiler
from tests.support.one_call import one_call, the_call


def of_parts(shapes: list[tuple[int, ...]], axis: int, dtype: str) -> SourceOperator | None:
    types = [relax.TensorType(s, dtype) for s in shapes]
    call = the_call(types, lambda *parts: relax.op.concat([*parts], axis=axis))
    parts = copied_parts(call, lambda _: None)
    assert parts is not None
    return joined(call, parts)


@dataclass(frozen=True)
class Sliced:
    """A part that is `data[begin:end]` along a dimension, seen with other `extents`."""

    data: tuple[int, ...]
    axis: int
    begin: int
    end: int
    extents: tuple[int, ...]

    def of(self, data: NDArray[np.generic]) -> NDArray[np.generic]:
        index = [slice(None)] * data.ndim
        index[self.axis] = slice(self.begin, self.end)
        return data[tuple(index)].reshape(self.extents)


def of_slices(parts: Sequence[Sliced], axis: int, dtype: str = "float16") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(p.data, dtype)) for i, p in enumerate(parts)]
    with builder.function("main", inputs):
        with builder.dataflow():
            made = [
                builder.emit(relax.op.reshape(builder.emit(
                    relax.op.strided_slice(x, [p.axis], [p.begin], [p.end])
                ), p.extents))
                for x, p in zip(inputs, parts, strict=True)
            ]  # fmt: skip
            out = builder.emit_output(relax.op.concat(made, axis=axis))
        builder.emit_func_output(out)
    return builder.get()


def one_of(parts: Sequence[Sliced], axis: int) -> SourceOperator | None:
    """The kernel of such a module's concatenation."""
    bound = {
        b.var: b.value for b in of_slices(parts, axis)["main"].body.blocks[0].bindings
    }  # fmt: skip
    *_, call = bound.values()
    found = copied_parts(call, bound.get)
    return joined(call, found) if found else None


HEADS = [
    Sliced((2, 40, 192), 2, 64, 128, (2, 40, 4, 16)), Sliced((2, 7, 192), 2, 64, 128, (2, 7, 4, 16))
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    ("parts", "axis", "width"),
    [
        ([Sliced((2, 400, 192), 2, 64, 128, (2, 400, 4, 16)), HEADS[1]], 1, 16),
        ([Sliced((1, 500, 192), 2, 128, 192, (1, 500, 64)),
          Sliced((1, 77, 96), 2, 8, 72, (1, 77, 64))], 1, 16),
        ([Sliced((6, 40, 96), 1, -12, 40, (6, 12, 96)), Sliced((6, 90, 96), 1, 0, 90, (6, 90, 96))],
         1, 16),
        ([Sliced((64, 300), 1, 2, 150, (64, 148)), Sliced((64, 452), 1, 2, 452, (64, 450))], 1, 4),
        ([Sliced((128, 300), 0, 28, 92, (64, 300)), Sliced((64, 300), 0, 0, 64, (64, 300))], 1, 8),
    ],
    ids=["heads", "one batch", "from the end", "pairs", "in one piece"],
)  # fmt: skip
def test_slices_are_read_where_they_are(
    parts: list[Sliced], axis: int, width: int, tmp_path: Path
) -> None:
    made = one_of(parts, axis)
    assert made is not None and VECTORS[width] in made.text("kernel")
    rng = np.random.default_rng(0)
    given = [rng.integers(-99, 99, p.data).astype("float16") for p in parts]
    (found,) = computed(made, given, tmp_path)
    wanted = [p.of(x) for p, x in zip(parts, given, strict=True)]
    np.testing.assert_array_equal(found, np.concatenate(wanted, axis=axis))


def test_slices_of_one_element_are_left() -> None:
    parts = [Sliced((64, 900), 1, 1, 801, (64, 800)), Sliced((64, 900), 1, 0, 800, (64, 800))]
    assert one_of(parts, 1) is None


def test_a_module_reads_no_slice_that_only_a_concatenation_reads() -> None:
    parts = [replace(HEADS[0], data=(2, 400, 192), extents=(2, 400, 4, 16)), HEADS[1]]
    after, (_,) = with_operators(of_slices(parts, 1))
    after = relax.transform.DeadCodeElimination()(after)
    (call,) = (b.value for b in after["main"].body.blocks[0].bindings)
    assert [a.name for a in call.args[1].fields] == ["x0", "x1"]


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
