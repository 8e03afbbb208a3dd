"""Concatenations of slices that are some values together are slices of one concatenation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.graph.load import load
from mcfuser.graph.matching import called
from tests.support.computed_naively import both
from tests.support.nets import Net

ROWS, WIDTH = (6, 4), 12


def sliced(
    cuts: tuple[tuple[int, int], ...],
    axis: int = 1,
    heads: int = 0,
    turned: bool = False,
    other: tuple[int, int] | None = None,
) -> onnx.ModelProto:
    """Two inputs, and the same slices of both behind each other; the first one is another slice of
    the second input if `other` is given."""
    n = Net()
    found = [n.input(f"x{i}", 2, rows, WIDTH) for i, rows in enumerate(ROWS)]
    outs = []
    for k, cut in enumerate(cuts):
        parts = []
        for i, x in enumerate(found):
            begin, end = other if other and i and not k else cut
            part = n.op("Slice", x, n.ints(begin), n.ints(end), n.ints(2))
            if heads:
                part = n.op("Reshape", part, n.ints(0, 0, heads, -1))
            parts.append(n.op("Transpose", part, perm=(0, 2, 1, 3)) if turned else part)
        joined = n.op("Concat", *parts, axis=2 if turned else axis)
        outs.append(n.op("Exp", joined))
    return n.model(*outs)


def concatenations(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The operators of a model's module, which computes what onnxruntime does."""
    loaded = load(model.SerializeToString(), {})
    for ours, theirs in both(model, loaded, [], folder):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return Counter(called(loaded.module["main"].body))


ALL = ((0, 4), (8, 12), (4, 8))


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("cuts", [ALL, ALL[:1] * 2 + ALL[1:], ((0, 2), (2, 12))])
def test_slices_that_are_all_are_of_one_concatenation(
    cuts: tuple[tuple[int, int], ...], heads: int, tmp_path: Path
) -> None:
    found = concatenations(sliced(cuts, heads=heads), tmp_path)
    assert found["relax.concat"] == 1 and found["relax.strided_slice"] == len({*cuts})


def test_what_is_turned_before_it_is_turned_behind(tmp_path: Path) -> None:
    found = concatenations(sliced(ALL, heads=2, turned=True), tmp_path)
    assert found["relax.concat"] == 1 and found["relax.permute_dims"] == 3


@pytest.mark.parametrize(
    ("cuts", "axis", "other"),
    [(ALL[:2], 1, None), (((0, 6), (4, 12)), 1, None), (ALL, 1, (1, 5)), (((0, 12),), 1, None)],
    ids=["a part is left", "parts overlap", "other positions", "no slice"],
)
def test_others_stay(
    cuts: tuple[tuple[int, int], ...], axis: int, other: tuple[int, int] | None, tmp_path: Path
) -> None:
    found = concatenations(sliced(cuts, axis, other=other), tmp_path)
    assert found["relax.concat"] == len(cuts)


def test_slices_side_by_side_along_their_own_dimension_stay(tmp_path: Path) -> None:
    n = Net()
    found = [n.input(f"x{i}", 2, 4, WIDTH) for i in range(2)]
    outs = []
    for begin, end in ALL:
        parts = [n.op("Slice", x, n.ints(begin), n.ints(end), n.ints(2)) for x in found]
        outs.append(n.op("Exp", n.op("Concat", *parts, axis=2)))
    assert concatenations(n.model(*outs), tmp_path)["relax.concat"] == len(ALL)
