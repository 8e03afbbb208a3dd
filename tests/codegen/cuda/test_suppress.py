"""Non-maximum suppression on a GPU, its blocks run on this machine, beside onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mcfuser.chain.suppression import Suppression
from mcfuser.codegen.cuda.suppress import suppression
from tests.support.cuda_blocks import computed
from tests.support.cuda_on_host import needs_compiler
from tests.support.suppressed import GIVEN, boxes_and_scores, by_onnxruntime


@needs_compiler
@pytest.mark.parametrize(("extents", "what"), GIVEN)
def test_rows_are_onnxruntime_s(
    extents: tuple[int, int, int], what: Suppression, tmp_path: Path
) -> None:
    boxes, scores = boxes_and_scores(extents, what.centered)
    (rows,) = computed(suppression(what, *extents), [boxes, scores], tmp_path)
    wanted = by_onnxruntime(boxes, scores, what)
    np.testing.assert_array_equal(rows[: len(wanted)], wanted)
    assert (rows[len(wanted) :] == -1).all() and len(rows) == extents[0] * extents[1] * what.most


def test_classes_are_closed_up_where_there_are_several() -> None:
    one, many = (suppression(Suppression(3, 0.5, None, False), 1, n, 9) for n in (1, 2))
    assert [s.name for s in one.steps] == ["choose"]
    assert [s.name for s in many.steps] == ["choose", "close"]
