"""Outputs that comparisons choose, where rounding decides between two that are as good.

A detector returns the boxes of the highest scores that do not overlap with better ones: of scores
that are nearly equal the one that is rounded up comes first, and all rows behind change places.
onnxruntime's own rows do so where its weights are rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from mcfuser.graph.decided import DECIDING
from mcfuser.graph.draw import Feeds
from mcfuser.graph.intermediate import Values, computed_by_onnxruntime
from mcfuser.graph.messages import inside
from mcfuser.graph.weights import OnnxModel
from mcfuser.measure.tolerance import difference

CHOOSING = DECIDING | {"ArgMax", "ArgMin", "TopK"}
"""Operators whose results depend on which of two numbers is larger."""
_DRAWS = 4
_ROUNDING = 0.01
"""By which part of what passes weights and inputs differ: 1e-6 in float32, as sums of some thousand
terms do."""
_LARGEST = 1 << 30
"""Bytes of weights of which so many copies are not made."""
_MOST = 2000
"""Rows of outputs above which they are not compared in any order."""
_PART = 0.95
"""The part of the rows that agree among onnxruntime's own results that has to agree with them."""
_SETTLED = 0.9
"""Where fewer of onnxruntime's own rows agree, nothing can be told."""

_Outputs = Sequence[NDArray[np.generic]]
_Rows = NDArray[np.float64]


def unsettled_errors(
    model: OnnxModel, feeds: Feeds, found: Mapping[str, NDArray[np.generic]], passes: float
) -> dict[str, float]:
    """The errors of outputs that were `found`, by name, as rows in any order: the largest distance
    of a row to the nearest one that onnxruntime gives, with the model's weights or with such as are
    rounded otherwise, left out as many rows as have none among these that is nearer than `passes`
    where onnxruntime's own results are compared with each other.

    Outputs of as many rows are compared together; distances are relative to an output's largest
    element. Only those are given of which one differs by more than `passes` among onnxruntime's own
    results, and none where the model chooses nothing, or where these agree too little. Raises
    InputError.
    """
    nodes = inside(model.proto.graph, onnx.NodeProto)
    if not any(n.op_type in CHOOSING and not n.domain for n in nodes):
        return {}
    if sum(model.array(w).nbytes for w in model.proto.graph.initializer) > _LARGEST:
        return {}
    runs = _runs(model, feeds, list(found), _ROUNDING * passes)
    errors = {}
    for group in _groups(found):
        if _count(found[group[0]]) > _MOST or _agree(runs, group, passes):
            continue
        scales = [_scale(runs[0][n]) for n in group]
        references = [_rows([run[n] for n in group], scales) for run in runs]
        own = _rows([found[n] for n in group], scales)
        if any(r.shape[1:] != own.shape[1:] or not len(r) for r in references) or not len(own):
            continue
        settled = min(
            float(np.mean(_distances(one, references[:i] + references[i + 1 :]) <= passes))
            for i, one in enumerate(references)
        )
        if settled >= _SETTLED:
            distances = np.sort(_distances(own, references))
            error = float(distances[max(0, int(np.ceil(_PART * settled * len(own))) - 1)])
            errors.update(dict.fromkeys(group, error))
    return errors


def _runs(model: OnnxModel, feeds: Feeds, names: Sequence[str], part: float) -> list[Values]:
    """The outputs of the model, and those of it with weights and inputs that are rounded otherwise,
    by a `part` at most."""
    runs = [computed_by_onnxruntime(model, feeds, names)]
    for draw in range(_DRAWS):
        random = np.random.default_rng(draw)
        moved = {n: _rounded(a, random, part) for n, a in feeds.items()}
        other = _with_other_weights(model, random, part)
        runs.append(computed_by_onnxruntime(other, moved, names))
    return runs


def _agree(runs: Sequence[Values], names: Sequence[str], passes: float) -> bool:
    """Whether none of these outputs differs among the runs."""
    return all(difference(run[n], runs[0][n]) <= passes for run in runs[1:] for n in names)


def _rounded(
    array: NDArray[np.generic], random: np.random.Generator, part: float
) -> NDArray[np.generic]:
    """The numbers with other last bits; others than floats as they are."""
    if array.dtype not in (np.float32, np.float64):
        return array
    moved = array.astype(np.float64) * (1 + part * random.uniform(-1, 1, array.shape))
    return moved.astype(array.dtype)


def _with_other_weights(model: OnnxModel, random: np.random.Generator, part: float) -> OnnxModel:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for weight in proto.graph.initializer:
        if len(weight.dims) > 1 and weight.name not in model.weights:
            array = _rounded(numpy_helper.to_array(weight), random, part)
            weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    large = {n: _rounded(a, random, part) if a.ndim > 1 else a for n, a in model.weights.items()}
    return replace(model, proto=proto, weights=large)


def _groups(found: Mapping[str, NDArray[np.generic]]) -> list[list[str]]:
    """The names of the outputs that have as many rows as each other."""
    by_count: dict[int, list[str]] = {}
    for name, array in found.items():
        by_count.setdefault(_count(array), []).append(name)
    return list(by_count.values())


def _count(array: NDArray[np.generic]) -> int:
    return int(array.size if array.ndim < 2 else array.size // max(1, array.shape[-1]))


def _scale(array: NDArray[np.generic]) -> float:
    numbers = np.abs(array.astype(np.float64))
    finite = numbers[np.isfinite(numbers)]
    return float(finite.max()) if finite.size and finite.max() else 1.0


def _rows(outputs: _Outputs, scales: Sequence[float]) -> _Rows:
    columns = [
        np.nan_to_num(o.astype(np.float64).reshape(_count(o), -1)) / s
        for o, s in zip(outputs, scales, strict=True)
    ]
    return (
        np.concatenate(columns, axis=1) if len({len(c) for c in columns}) == 1 else columns[0][:0]
    )


def _distances(rows: _Rows, references: Sequence[_Rows]) -> NDArray[np.float64]:
    """How far each row is from the nearest one of the references, in its largest difference."""
    every = np.concatenate(references)
    nearest = [np.abs(every - row).max(axis=1).min() for row in rows]
    return np.asarray(nearest, np.float64)
