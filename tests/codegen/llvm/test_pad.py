"""Padding on a CPU copies rows and fills what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.codegen.llvm.pad import SMALL, source
from tests.support.lifted import computed


def padding(shape: Sequence[int], width: Sequence[int], **options: object) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(relax.op.nn.pad(x, width, **options)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize(
    ("shape", "width", "value"),
    [
        ((7,), [1, 2], 0.0),
        ((3, 4), [1, 2, 0, 0], 1.5),
        ((2, 3, 5), [0, 0, 1, 0, 2, 1], float("-inf")),
        ((2, 3, 5), [1, 1, 0, 0, 0, 3], -3.4028234663852886e38),
        ((1, 16, 30, 40), [0, 0, 0, 0, 1, 1, 1, 1], 0.0),
        ((2, 2, 3, 4, 5), [0, 0, 0, 0, 0, 0, 0, 1, 0, 2], 0.0),
    ],
)
def test_a_padded_tensor_is_numpy_s(
    shape: tuple[int, ...], width: list[int], value: float, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (found,) = computed(padding(shape, width, pad_value=value), [x], tmp_path)
    pairs = list(zip(width[::2], width[1::2], strict=True))
    np.testing.assert_array_equal(found, np.pad(x, pairs, constant_values=value))


def test_other_modes_are_tvm_s(tmp_path: Path) -> None:
    x = np.arange(6.0, dtype="float32")
    (found,) = computed(padding((6,), [2, 1], pad_mode="reflect"), [x], tmp_path)
    np.testing.assert_array_equal(found, np.pad(x, [(2, 1)], mode="reflect"))


def test_rows_are_spread_over_the_cores_where_that_pays() -> None:
    assert "T.parallel" in source((SMALL, 2), [1, 1, 0, 0], 0.0, "float32")
    assert "T.parallel" not in source((8, 2), [1, 1, 0, 0], 0.0, "float32")


def test_no_element_is_looked_at_for_being_padding() -> None:
    text = source((4, 30, 30), [0, 0, 1, 1, 1, 1], 0.0, "float32")
    copies = text.splitlines()[text.splitlines().index(next(
        line for line in text.splitlines() if "for j in range(30)" in line
    )) :]  # fmt: skip
    assert "if" not in copies[1] and text.count("if ") == 1
