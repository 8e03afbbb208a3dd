"""Cumulative sums on a GPU, beside NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.cuda.kernel import SourceOperator
from mcfuser.codegen.cuda.scan import LONGEST_ROW, MANY, THREADS, cumulated, operator
from tests.support.cuda_blocks import computed, numpy_type
from tests.support.cuda_on_host import needs_compiler
from tests.support.one_call import the_call


def of_call(extents: tuple[object, ...], kind: str, **given: object) -> SourceOperator | None:
    """The kernel of a call, if there is one."""
    return cumulated(
        the_call([relax.TensorType(extents, kind)], lambda x: relax.op.cumsum(x, **given))
    )


@needs_compiler
@pytest.mark.parametrize(
    ("extents", "axis", "dtype", "exclusive"),
    [
        ((3, 70, 5), 1, "float32", False), ((3, 70, 5), 1, "int64", True),
        ((9, 3), 0, "float16", False), ((2, 40), 0, "bfloat16", True),
        ((3, 70), -1, "float32", True), ((9, 33), 1, "int32", False), ((20,), 0, "float64", False),
    ],
)  # fmt: skip
def test_sums_are_numpy_s(
    extents: tuple[int, ...], axis: int, dtype: str, exclusive: bool, tmp_path: Path
) -> None:
    made = of_call(extents, dtype, axis=axis, exclusive=exclusive)
    assert made is not None
    check(made, extents, axis, dtype, exclusive, tmp_path)


def check(
    made: SourceOperator, extents: tuple[int, ...], axis: int, dtype: str, exclusive: bool,
    folder: Path,
) -> None:  # fmt: skip
    x = np.random.default_rng(0).integers(-3, 4, extents).astype(numpy_type(dtype))
    (found,) = computed(made, [x], folder)
    wide = x.astype(np.float64)
    wanted = np.cumsum(wide, axis=axis) - (wide if exclusive else 0)
    np.testing.assert_array_equal(found.astype(np.float64), wanted)


@needs_compiler
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_thread_has_a_whole_line_where_there_are_many(
    exclusive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert operator((MANY // 8, 6, 8), 1, "float32", False).steps[0].threads == THREADS
    monkeypatch.setattr("mcfuser.codegen.cuda.scan.MANY", 1)
    made = operator((5, 9, 60), 1, "float16", exclusive)
    assert (made.steps[0].threads, made.steps[0].blocks) == (THREADS, 2)
    check(made, (5, 9, 60), 1, "float16", exclusive, tmp_path)


@pytest.mark.parametrize(
    ("extents", "dtype", "given"),
    [
        ((3, "n"), "float32", {"axis": 0}), ((3, 4), "int8", {"axis": 0}),
        ((3, 0), "int32", {"axis": 0}), ((3, 4), "float32", {}),
        ((3, 4), "int32", {"axis": 0, "dtype": "int64"}),
        ((2, LONGEST_ROW + 1), "float32", {"axis": 1}),
    ],
)  # fmt: skip
def test_others_are_left_to_tvm(
    extents: tuple[int | str, ...], dtype: str, given: dict[str, object]
) -> None:
    shape = tuple(tvm.tirx.Var(e, "int64") if isinstance(e, str) else e for e in extents)
    assert of_call(shape, dtype, **given) is None
