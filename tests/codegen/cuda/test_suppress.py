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

FAST = 227 << 10
"""Bytes that the blocks of an H200 share."""


@needs_compiler
@pytest.mark.parametrize("fast", [0, FAST])
@pytest.mark.parametrize(
    ("extents", "what"), [*GIVEN, ((1, 1, 300), Suppression(300, 0.9, None, False))]
)
def test_rows_are_onnxruntime_s(
    extents: tuple[int, int, int], what: Suppression, fast: int, tmp_path: Path
) -> None:
    boxes, scores = boxes_and_scores(extents, what.centered)
    operator = suppression(what, *extents, fast)
    assert ("keys" in operator.text("kernel")) is bool(fast)
    (rows,) = computed(operator, [boxes, scores], tmp_path)
    wanted = by_onnxruntime(boxes, scores, what)
    np.testing.assert_array_equal(rows[: len(wanted)], wanted)
    assert (rows[len(wanted) :] == -1).all() and len(rows) == extents[0] * extents[1] * what.most


def test_classes_are_closed_up_where_there_are_several() -> None:
    what = Suppression(3, 0.5, None, False)
    one, many = (suppression(what, 1, n, 9, FAST) for n in (1, 2))
    assert [s.name for s in one.steps] == ["choose"]
    assert [s.name for s in many.steps] == ["choose", "close"]


def test_as_many_scores_are_sorted_as_a_block_has_memory_for() -> None:
    what = Suppression(300, 0.5, None, False)
    most, more, few = (suppression(what, 1, 1, n, FAST) for n in (16384, 16385, 5))
    assert (most.shared, more.shared, few.shared) == (131072, 0, 512)
    assert [o.steps[0].threads for o in (most, more, few)] == [1024, 1024, 64]
