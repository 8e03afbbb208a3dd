"""Compares the module of several buckets with onnxruntime, at several shapes of each bucket."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from mcfuser.errors import DisagreementError, InputError, LimitError
from mcfuser.graph.check import (
    answer,
    model_tolerance,
    output_errors,
    reference_session,
    settled_errors,
)
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.dynamic.axes import Point
from mcfuser.graph.dynamic.bucket import told
from mcfuser.graph.dynamic.buckets import LoadedBuckets
from mcfuser.graph.dynamic.choice import Box
from mcfuser.graph.running import RunMode, running
from mcfuser.measure.tolerance import numberless


def verify_buckets(
    loaded: LoadedBuckets,
    library: Path,
    mode: RunMode,
    seed: int,
    end: float,
    narrow: str | None = None,
) -> dict[str, Any]:
    """Compares a module with onnxruntime, which runs the model as it was given, on random inputs;
    gives what was found, for the report.

    Each bucket is run at its highest extents, at its lowest, and between, and the module once with
    more rows than it takes at once, if it computes slices of them. No shape is begun after
    `end` (time.monotonic), and `skipped` says so where none was compared. `narrow` is the type to
    which products were narrowed, if they were. Raises DisagreementError, naming the shapes, where
    the outputs differ.
    """
    try:
        reference = reference_session(loaded.model.checked)
    except InputError as refusal:
        return {"skipped": str(refusal)}
    passes = model_tolerance(loaded.model.checked.proto, narrow)
    points = [p for b in loaded.buckets for p in compared_at(b.box)]
    points += beyond(loaded)
    first = _feeds(loaded, points[0], seed)
    names = [o.name for o in loaded.model.checked.proto.graph.output]
    found: list[tuple[Point, dict[str, float]]] = []
    without = dict[str, None]()
    try:
        with running(library, first, mode, end - time.monotonic()) as child:
            for point in points:
                if time.monotonic() > end:
                    break
                feeds = first if point is points[0] else _feeds(loaded, point, seed)
                expected = answer(reference, feeds)
                made = child.outputs if point is points[0] else child.on(feeds)
                errors = output_errors(names, made, expected)
                errors = settled_errors(errors, passes, loaded.model.checked, feeds, made)
                if not max(errors.values()) <= passes:
                    worst = max(errors.values())
                    raise DisagreementError(_differs(loaded, point, worst, passes))
                found.append((point, errors))
                without |= dict.fromkeys(numberless(names, expected))
    except LimitError:
        pass
    if not found:
        return {"skipped": "no time was left"}
    shapes = [{"extents": dict(p), "error": max(errors.values())} for p, errors in found]
    outputs = {n: max(errors[n] for _, errors in found) for n in names}
    worst = max(outputs.values())
    return {
        "error": worst, "outputs": outputs, "shapes": shapes, "tolerance": passes, "seed": seed,
        "numberless": [*without],
    }  # fmt: skip


def compared_at(box: Box) -> list[dict[str, int]]:
    """The extents at which a bucket is compared."""
    middle = {name: (low + box.high[name]) // 2 for name, low in box.low.items()}
    points = [dict(box.high), dict(box.low), middle]
    return [p for i, p in enumerate(points) if p not in points[:i]]


def beyond(loaded: LoadedBuckets) -> list[dict[str, int]]:
    """The extents above the highest at which a module is compared that computes slices."""
    if loaded.sliced is None:
        return []
    box = loaded.buckets[0].box
    return [{**compared_at(box)[-1], loaded.sliced.name: 2 * loaded.sliced.high + 1}]


def _feeds(loaded: LoadedBuckets, point: Point, seed: int) -> Feeds:
    return inputs(loaded.model.fixed(point), np.random.default_rng(seed))


def _differs(loaded: LoadedBuckets, point: Point, error: float, passes: float) -> str:
    holding = (
        f"bucket {i}"
        for i, b in enumerate(loaded.buckets, 1)
        if all(point[name] <= high for name, high in b.box.high.items())
    )
    where = next(holding, "in slices")
    shapes = " ".join(
        f"--shape {name}={'x'.join(map(str, shape))}"
        for name, shape in loaded.model.shapes.at(point).items()
    )
    return (
        f"the module disagrees with onnxruntime at {told(point)} ({where}): its outputs "
        f"differ by {error:.1e}, more than {passes:.0e}; mcfuser bisect {shapes} compares the "
        "operators of a module for these shapes alone"
    )
