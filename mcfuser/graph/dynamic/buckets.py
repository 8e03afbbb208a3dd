"""The buckets of a model, imported, and the module that they form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import tvm

from mcfuser.chain.recurrence import NO_RECURRENCES, RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.extents import InputShapes
from mcfuser.graph.dynamic.analysis import PaddedModel
from mcfuser.graph.dynamic.axes import (
    Point,
    RuntimeExtent,
    runtime_shapes,
    tied,
)
from mcfuser.graph.dynamic.bucket import DynamicModel, bucket_model
from mcfuser.graph.dynamic.choice import Box, ChosenBuckets, choose, given_buckets
from mcfuser.graph.dynamic.dispatch import BucketFunction, PortExtent, RuntimePort, dispatched
from mcfuser.graph.dynamic.length import Symbol
from mcfuser.graph.dynamic.slices import sliced_extent
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.load import Loaded, ModelPort, checked_model, imported, written_out
from mcfuser.graph.wire import ModelBytes


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shapes of a box, and the model that computes them at its highest extents.

    `extents` are the run-time extents that the model takes after its inputs.
    """

    box: Box
    loaded: Loaded
    extents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadedBuckets:
    """A model with run-time extents, and its buckets, smaller ones first.

    `results` are the shapes of its outputs over the ranges as a whole: a bucket may have a single
    extent, and tells nothing of others then. More than the highest of the extent `sliced`, where
    there is one, are computed in slices of it.
    """

    model: DynamicModel
    chosen: ChosenBuckets
    buckets: tuple[Bucket, ...]
    results: tuple[tuple[PortExtent, ...], ...]
    sliced: RuntimeExtent | None = None

    @property
    def ports(self) -> tuple[tuple[RuntimePort, ...], tuple[RuntimePort, ...]]:
        """The inputs and outputs at run time."""
        largest = self.buckets[-1]
        count = len(largest.loaded.inputs) - len(largest.extents)
        names = {place: e.name for e in self.model.shapes.extents for place in e.places}
        inputs = tuple(_input(p, names) for p in largest.loaded.inputs[:count])
        outputs = tuple(
            RuntimePort(p.name, shape, p.dtype)
            for p, shape in zip(largest.loaded.outputs, self.results, strict=True)
        )
        return inputs, outputs


def _input(port: ModelPort, names: Mapping[tuple[str, int], str]) -> RuntimePort:
    dims = [
        Symbol(names[port.name, d]) if (port.name, d) in names else extent
        for d, extent in enumerate(port.shape)
    ]
    return RuntimePort(port.name, tuple(dims), port.dtype)


def load_bucket(model: DynamicModel, box: Box, narrow: str | None = None) -> Bucket:
    """The Relax module of a bucket, with products of the type `narrow` if given. Raises ModelError,
    naming the operator that cannot be computed at run-time extents."""
    return _imported(model, box, bucket_model(model, box.low, box.high), narrow)


def _imported(model: DynamicModel, box: Box, made: PaddedModel, narrow: str | None) -> Bucket:
    loaded = imported(made.model, model.limits, narrow, integers=model.integers)
    return Bucket(box, loaded, made.extents)


def load_buckets(
    model: ModelBytes,
    shapes: InputShapes,
    limits: ModelLimits,
    folder: DataFolder | None,
    most: int,
    cost: Callable[[Loaded], float],
    narrow: str | None = None,
    boxes: Sequence[Box] | None = None,
    integers: bool = True,
    recurrences: RecurrenceLimits = NO_RECURRENCES,
) -> LoadedBuckets:
    """The buckets of a model, `most` of them at most; `cost` predicts the seconds of a model. They
    are those of `boxes` where these are given.

    The products of a float32 model have operands of the type `narrow` where that is given, and
    weights stay `integers`, and nodes calls within the limits `recurrences`, as in `load`.

    Extents of several names and one range are one extent where the model cannot be computed
    otherwise. Raises ModelError as `load` does, and where an operator cannot be computed at
    run-time extents.
    """
    checked = checked_model(model, limits, folder)
    ranges = runtime_shapes(checked.proto, shapes)
    dynamic, whole = _whole(DynamicModel(checked, ranges, limits, integers, recurrences))

    def predicted(point: Point) -> float:
        written = written_out(dynamic.fixed(point), limits, integers, recurrences)
        return cost(imported(written, limits, narrow, integers=integers))

    if boxes is None:
        chosen = choose(dynamic.shapes.extents, predicted, most)
    else:
        chosen = given_buckets(dynamic.shapes.extents, boxes)
    if len(chosen.boxes) == 1:  # of all shapes, which is written already
        buckets: tuple[Bucket, ...] = (_imported(dynamic, chosen.boxes[0], whole, narrow),)
    else:
        buckets = tuple(load_bucket(dynamic, box, narrow) for box in chosen.boxes)
    return LoadedBuckets(dynamic, chosen, buckets, whole.results, sliced_extent(dynamic, whole))


def _whole(dynamic: DynamicModel) -> tuple[DynamicModel, PaddedModel]:
    """The model over the whole of its ranges: what cannot be computed is said before time is spent.

    Where extents of one range are tied only because the model is refused otherwise, and it is then
    refused, too, the first refusal is raised.
    """
    shapes = dynamic.shapes
    low = {e.name: e.low for e in shapes.extents}
    high = {e.name: e.high for e in shapes.extents}
    try:
        return dynamic, bucket_model(dynamic, low, high)
    except ModelError as refusal:
        fewer = tied(shapes)
        if len(fewer.extents) == len(shapes.extents):
            raise
        with suppress(ModelError):
            return _whole(replace(dynamic, shapes=fewer))
        raise refusal from None


def joined(loaded: LoadedBuckets, modules: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """The module of the buckets, whose functions are those of `modules`."""
    inputs, outputs = loaded.ports
    functions = [
        BucketFunction(b.box.high, module, b.extents)
        for b, module in zip(loaded.buckets, modules, strict=True)
    ]
    return dispatched(functions, loaded.model.shapes.extents, inputs, outputs, loaded.sliced)
