"""Non-maximum suppression on a CPU, beside onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from mcfuser.chain.suppression import Suppression, suppression_symbol
from mcfuser.codegen.llvm.suppress import source
from tests.support.lifted import computed
from tests.support.one_call import one_call
from tests.support.suppressed import GIVEN, boxes_and_scores, by_onnxruntime


def module(what: Suppression, pictures: int, classes: int, n: int) -> tvm.IRModule:
    kinds = [relax.TensorType(e, "float32") for e in ((pictures, n, 4), (pictures, classes, n))]
    rows = relax.TensorType((pictures * classes * what.most, 3), "int64")
    function = relax.ExternFunc(suppression_symbol(what))
    return one_call(kinds, lambda *x: relax.op.call_dps_packed(function, relax.Tuple(x), rows))


@pytest.mark.parametrize(
    ("extents", "what"), [*GIVEN, ((2, 30, 700), Suppression(50, 0.5, 0.1, False))]
)
def test_rows_are_onnxruntime_s(
    extents: tuple[int, int, int], what: Suppression, tmp_path: Path
) -> None:
    boxes, scores = boxes_and_scores(extents, what.centered)
    (rows,) = computed(module(what, *extents), [boxes, scores], tmp_path)
    wanted = by_onnxruntime(boxes, scores, what)
    np.testing.assert_array_equal(rows[: len(wanted)], wanted)
    assert (rows[len(wanted) :] == -1).all()


def test_what_is_no_number_is_never_chosen(tmp_path: Path) -> None:
    boxes, scores = boxes_and_scores((1, 1, 20), False)
    scores[0, 0, 3:] = np.nan
    boxes[0, 1] = np.nan
    (rows,) = computed(
        module(Suppression(20, 0.5, None, False), 1, 1, 20), [boxes, scores], tmp_path
    )
    chosen = rows[rows[:, 0] >= 0, 2].tolist()
    assert set(chosen) <= {0, 1, 2} and len(chosen) == len(set(chosen))


def test_classes_are_shared_by_the_cores() -> None:
    what = Suppression(100, 0.5, None, False)
    assert "for u in T.parallel(80)" in source(what, 1, 80, 8400)
    assert "T.parallel" not in source(what, 1, 1, 8400), "one class"
    assert "T.parallel" not in source(what, 2, 1, 9), "few boxes"
