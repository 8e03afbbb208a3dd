"""Boxes of which some overlap, and those that onnxruntime chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain.suppression import Suppression
from tests.support.one_node import one_node, run

GIVEN = [
    ((1, 1, 9), Suppression(9, 0.5, None, False)),
    ((1, 1, 100), Suppression(7, 0.3, None, False)),
    ((2, 3, 33), Suppression(33, 0.4, 0.2, False)),
    ((1, 4, 64), Suppression(20, 0.0, 0.5, True)),
    ((3, 1, 1), Suppression(1, 0.5, None, True)),
    ((1, 2, 40), Suppression(40, 1.0, 0.9999, False)),
    ((2, 2, 130), Suppression(130, 0.25, None, False)),
]
"""Pictures, classes and boxes, and how they are chosen."""


def boxes_and_scores(
    extents: tuple[int, int, int], centered: bool, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Boxes around few places, in any order of their corners, some without an area; and scores, of
    which some are equal."""
    pictures, classes, n = extents
    random = np.random.default_rng(seed)
    centre = random.integers(0, 4, (pictures, n, 2)) + random.normal(0, 0.2, (pictures, n, 2))
    size = random.uniform(0.2, 1.5, (pictures, n, 2)) * (random.random((pictures, n, 1)) < 0.95)
    both = (centre, size) if centered else (centre - size / 2, centre + size / 2)
    boxes = np.concatenate(both, axis=2).astype(np.float32)
    if not centered:
        swapped = random.random((pictures, n)) < 0.3
        boxes[swapped] = boxes[swapped][:, [2, 3, 0, 1]]
    scores = random.integers(0, 12, (pictures, classes, n)) / 11
    return boxes, scores.astype(np.float32)


def by_onnxruntime(
    boxes: NDArray[Any], scores: NDArray[Any], what: Suppression
) -> NDArray[np.int64]:
    """The rows that onnxruntime chooses."""
    given = {"boxes": boxes, "scores": scores}
    constants = {
        "most": np.array([what.most]), "overlap": np.array([what.overlap], np.float32),
    }  # fmt: skip
    if what.least is not None:
        constants["least"] = np.array([what.least], np.float32)
    model = one_node(
        "NonMaxSuppression", [*given, *constants], 1, given, constants, dtypes=[np.int64],
        center_point_box=int(what.centered),
    )  # fmt: skip
    return np.asarray(run(model, given)[0])
