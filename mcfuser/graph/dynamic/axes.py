"""The dimensions of a model's inputs whose extents are known only at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from mcfuser.errors import ModelError
from mcfuser.extents import ExtentRange, InputShapes
from mcfuser.graph.bind import named_extents

Point = Mapping[str, int]
"""An extent for each run-time extent, by name."""


@dataclass(frozen=True, slots=True)
class RuntimeExtent:
    """An extent with bounds, and the dimensions of inputs that have it: (input, position).
    `tied` are the names of other extents that are this one."""

    name: str
    low: int
    high: int
    places: tuple[tuple[str, int], ...]
    tied: tuple[str, ...] = ()

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that have it."""
        return frozenset(name for name, _ in self.places)

    @property
    def place(self) -> str:
        """The first dimension that has it, for messages."""
        name, position = self.places[0]
        return f"dimension {position} of input '{name}'"


@dataclass(frozen=True, slots=True)
class RuntimeShapes:
    """The shapes of a model's inputs as the user gave them, and their run-time extents."""

    given: InputShapes
    extents: tuple[RuntimeExtent, ...]

    def at(self, point: Point) -> dict[str, tuple[int, ...]]:
        """The shapes that were given, by input or by the name of a dimension, where the run-time
        extents are these."""
        names = {(n, 0): e.name for e in self.extents for n in (e.name, *e.tied)}
        names |= {place: e.name for e in self.extents for place in e.places}
        return {
            name: tuple(
                point[names[name, i]] if isinstance(extent, ExtentRange) else extent
                for i, extent in enumerate(shape)
            )
            for name, shape in self.given.items()
        }


def tied(shapes: RuntimeShapes) -> RuntimeShapes:
    """The same shapes where extents of different inputs that have one range are one extent.

    An exporter that names each input's dimensions by itself gives one extent several names.
    """
    kept: list[RuntimeExtent] = []
    for extent in shapes.extents:
        for i, one in enumerate(kept):
            alike = (one.low, one.high) == (extent.low, extent.high)
            if alike and not one.inputs & extent.inputs:
                tied_names = (*one.tied, extent.name, *extent.tied)
                kept[i] = replace(one, places=(*one.places, *extent.places), tied=tied_names)
                break
        else:
            kept.append(extent)
    return replace(shapes, extents=tuple(kept))


def runtime_shapes(proto: onnx.ModelProto, shapes: InputShapes) -> RuntimeShapes:
    """The run-time extents of a model whose inputs have these shapes.

    Dimensions of one name in the model are one extent, which may be given by that name. Raises
    ModelError where two of a name have different ranges, where a range is given for a dimension
    that the model fixes, or where a shape does not fit its input.
    """
    inputs = {i.name: i for i in proto.graph.input}
    named = named_extents(proto, shapes)
    found = {
        name: RuntimeExtent(name, extent.low, extent.high, _places(inputs, name))
        for name, extent in named.items()
        if isinstance(extent, ExtentRange)
    }
    by_input = {name: shape for name, shape in shapes.items() if name not in named}
    for name, shape in by_input.items():
        dims = _dims(inputs[name], name, len(shape))
        for position, (extent, dim) in enumerate(zip(shape, dims, strict=True)):
            if not isinstance(extent, ExtentRange):
                continue
            if dim is not None and dim.HasField("dim_value"):
                raise ModelError(
                    f"--shape gives dimension {position} of input '{name}' the range {extent}; "
                    f"the model fixes it at {dim.dim_value}"
                )
            key = dim.dim_param if dim is not None and dim.dim_param else f"{name}.{position}"
            if key in found and (found[key].low, found[key].high) != (extent.low, extent.high):
                raise ModelError(
                    f"--shape gives {found[key].place} and dimension {position} of input '{name}' "
                    f"different ranges; in the model both are '{key}', so give both one range"
                )
            places = dict.fromkeys((*(found[key].places if key in found else ()), (name, position)))
            found[key] = RuntimeExtent(key, extent.low, extent.high, tuple(places))
    for name, shape in by_input.items():
        dims = _dims(inputs[name], name, len(shape))
        for position, (given, dim) in enumerate(zip(shape, dims, strict=True)):
            key = dim.dim_param if dim is not None else ""
            if isinstance(given, int) and key in found:
                raise ModelError(
                    f"--shape fixes dimension {position} of input '{name}' at {given}, and gives "
                    f"{found[key].place} a range; in the model both are '{key}'"
                )
    for name in found.keys() & named.keys():
        if not isinstance(named[name], ExtentRange):
            raise ModelError(
                f"--shape fixes dimension '{name}' at {named[name]}, and gives "
                f"{found[name].place}, which is that, a range"
            )
    return RuntimeShapes(shapes, tuple(_named(inputs, extent) for extent in found.values()))


def _dims(
    value: onnx.ValueInfoProto, name: str, rank: int
) -> list[onnx.TensorShapeProto.Dimension | None]:
    """The dimensions of an input; None for each where the model has no shape for it."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return [None] * rank
    if len(tensor.shape.dim) != rank:
        raise ModelError(
            f"--shape gives input '{name}' {rank} dimensions; it has {len(tensor.shape.dim)}"
        )
    return list(tensor.shape.dim)


def _named(inputs: Mapping[str, onnx.ValueInfoProto], extent: RuntimeExtent) -> RuntimeExtent:
    """The extent with every dimension of its name, those of other inputs included."""
    every = dict.fromkeys((*extent.places, *_places(inputs, extent.name)))
    return replace(extent, places=tuple(every))


def _places(
    inputs: Mapping[str, onnx.ValueInfoProto], dimension: str
) -> tuple[tuple[str, int], ...]:
    """Where inputs have a dimension of this name."""
    return tuple(
        (name, position)
        for name, value in inputs.items()
        for position, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param == dimension
    )
