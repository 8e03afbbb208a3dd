"""The buckets of a model, imported, and the module that they form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm

from mcfuser.extents import Shapes
from mcfuser.graph.dynamic.axes import Point, RuntimeShapes, runtime_shapes
from mcfuser.graph.dynamic.bucket import DynamicModel, bucket_model
from mcfuser.graph.dynamic.dispatch import BucketFunction, Dim, RuntimePort, dispatched
from mcfuser.graph.dynamic.length import Symbol
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.load import Loaded, checked_model, imported


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shapes from `low` to `high`, and the model that computes them at `high`.

    `extents` are the run-time extents that the model takes after its inputs; `results` are the
    run-time shapes of its outputs.
    """

    low: Point
    high: Point
    loaded: Loaded
    extents: tuple[str, ...]
    results: tuple[tuple[Dim, ...], ...]


def dynamic_model(
    model: bytes, shapes: Shapes, limits: ModelLimits, folder: DataFolder | None
) -> DynamicModel:
    """A checked model with the shapes of its inputs. Raises ModelError."""
    checked = checked_model(model, limits, folder)
    return DynamicModel(checked, runtime_shapes(checked.proto, shapes), limits)


def load_bucket(model: DynamicModel, low: Point, high: Point) -> Bucket:
    """The Relax module of a bucket. Raises ModelError, naming the operator that cannot be computed
    at run-time extents."""
    made = bucket_model(model, low, high)
    loaded = imported(made.model, model.limits)
    return Bucket(low, high, loaded, made.extents, made.results)


def ports(
    shapes: RuntimeShapes, buckets: Sequence[Bucket]
) -> tuple[tuple[RuntimePort, ...], tuple[RuntimePort, ...]]:
    """The inputs and outputs of a model at run time."""
    largest = buckets[-1]
    names = {place: e.name for e in shapes.extents for place in e.places}
    count = len(largest.loaded.inputs) - len(largest.extents)
    inputs = tuple(
        RuntimePort(
            p.name,
            tuple(
                Symbol(names[p.name, d]) if (p.name, d) in names else extent
                for d, extent in enumerate(p.shape)
            ),
            p.dtype,
        )
        for p in largest.loaded.inputs[:count]
    )
    outputs = tuple(
        RuntimePort(p.name, dims, p.dtype)
        for p, dims in zip(largest.loaded.outputs, _results(buckets), strict=True)
    )
    return inputs, outputs


def _results(buckets: Sequence[Bucket]) -> list[tuple[Dim, ...]]:
    """The run-time shapes of the outputs: of the buckets, one knows each extent as an expression
    where it is no number in all of them."""
    return [
        tuple(next((d for d in dims if not isinstance(d, int)), dims[0]) for dims in zip(*one))
        for one in zip(*(b.results for b in buckets), strict=True)
    ]


def joined(
    shapes: RuntimeShapes, buckets: Sequence[Bucket], modules: Sequence[tvm.IRModule]
) -> tvm.IRModule:
    """The module of the buckets, whose functions are those of `modules`."""
    inputs, outputs = ports(shapes, buckets)
    functions = [
        BucketFunction(b.high, module, b.extents)
        for b, module in zip(buckets, modules, strict=True)
    ]
    return dispatched(functions, shapes.extents, inputs, outputs)
