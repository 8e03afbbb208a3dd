"""Positions of the best elements, where two are as good as each other.

A product that is rounded otherwise by 1e-7 turns the order of two of a million scores, and the
position that is returned is another one, by any number. What it stands for is as good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from mcfuser.graph.draw import Feeds
from mcfuser.graph.intermediate import computed_by_onnxruntime
from mcfuser.graph.weights import OnnxModel

CHOICES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"ArgMax": (0, 0), "ArgMin": (0, 0), "TopK": (1, -1)}
)
"""Operators whose results are positions of the best elements: which of their results, and the
dimension that they look along where a node names none."""
SAME_ORDER = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that keep their operand's elements in their order."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Positions along an axis of `scores`, both by the names of the model's values."""

    scores: str
    positions: str
    axis: int


def choice(proto: onnx.ModelProto, output: str) -> Choice | None:
    """The choice whose positions an output has, in their order; None where it has no such ones."""
    made = {name: node for node in proto.graph.node for name in node.output if name}
    node = made.get(output)
    while node is not None and node.op_type in SAME_ORDER:
        output = node.input[0]
        node = made.get(output)
    if node is None or node.domain or node.op_type not in CHOICES:
        return None
    which, usual = CHOICES[node.op_type]
    if list(node.output).index(output) != which:
        return None
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return Choice(node.input[0], output, int(given.get("axis", usual)))


def tied_error(
    model: OnnxModel, feeds: Feeds, output: str, found: NDArray[np.generic]
) -> float | None:
    """By how much the scores at the positions that were `found` differ from those at onnxruntime's,
    relative to the norm of the latter; infinite where positions are outside, or are given twice for
    a line. None where the output is no choice. Raises InputError."""
    chosen = choice(model.proto, output)
    if chosen is None or not np.issubdtype(found.dtype, np.integer):
        return None
    values = computed_by_onnxruntime(model, feeds, [chosen.scores, chosen.positions])
    scores, expected = values[chosen.scores].astype(np.float64), values[chosen.positions]
    if found.size != expected.size or not scores.size:
        return None
    axis = chosen.axis % scores.ndim
    expected, own = (_lines(p, expected.shape, scores.shape, axis) for p in (expected, found))
    outside = own.min() < 0 or own.max() >= scores.shape[axis]
    if outside or (np.diff(np.sort(own, axis), axis=axis) == 0).any():
        return float("inf")
    wanted, instead = (np.take_along_axis(scores, p, axis) for p in (expected, own))
    same = (wanted == instead) | (np.isnan(wanted) & np.isnan(instead))
    if not np.isfinite(wanted[~same]).all() or not np.isfinite(instead[~same]).all():
        return float("inf")
    norm = np.linalg.norm(wanted[np.isfinite(wanted)])
    return float(np.linalg.norm(wanted[~same] - instead[~same]) / (norm or 1.0))


def _lines(
    positions: NDArray[np.generic], made: tuple[int, ...], scores: tuple[int, ...], axis: int
) -> NDArray[np.int64]:
    """Positions with the dimensions of the scores: an ArgMax may have dropped its own."""
    count = positions.size * scores[axis] // int(np.prod(scores))
    shape = (*scores[:axis], count, *scores[axis + 1 :])
    return positions.reshape(made).reshape(shape).astype(np.int64)
