"""Explains a model before it is compiled: its regions, what they save, and why the rest is in none.

Nothing is compiled or measured, and no device is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tvm import relax

from mcfuser.backends import backend_of
from mcfuser.chain import Chain, unfused_cut
from mcfuser.device import Device
from mcfuser.graph.dataflow import Dataflow, dataflow, dtype, extents
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.graph.tensors import tensor_form
from mcfuser.tune.cover import pieces
from mcfuser.tune.expected import expected
from mcfuser.tune.tuned import TuneOptions


@dataclass(frozen=True, slots=True)
class ExplainedRegion:
    """A chain that is found in a model, at one or more `places`.

    `saved_bytes` need not be written and read back at each place if it is one kernel. The seconds
    are predicted: of one kernel's best candidate, and of the best ones of `pieces` kernels, the
    most there can be. They are None where no candidate is legal, and in pieces where there is one.
    """

    name: str
    operators: tuple[str, ...]
    places: int
    saved_bytes: int
    pieces: int
    fused_seconds: float | None
    pieces_seconds: float | None


@dataclass(frozen=True, slots=True)
class ExplainedOperator:
    """An operator of the imported model: its name, what it computes, its result's form, and the
    number of its region in `ModelExplanation.regions`, or why it is in none."""

    name: str
    operator: str
    result: str
    region: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ModelExplanation:
    """The regions and the operators of a model, for a device, in the order in which they run."""

    device: str
    regions: tuple[ExplainedRegion, ...]
    operators: tuple[ExplainedOperator, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explain(
    model: bytes,
    device: Device,
    shapes: Mapping[str, tuple[int, ...]],
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
    narrow: str | None = None,
) -> ModelExplanation:
    """The explanation of an ONNX model for a device; arguments and errors are those of
    mcfuser.compile.compile_model."""
    module = load(model, shapes, limits, folder, narrow).module
    price = partial(expected, device=device, options=TuneOptions(), backend=backend_of(device))
    parted = partition(module, device.throughput("float32"), device.bandwidth, price)
    flow = dataflow(module["main"])
    found = places(parted.matches)
    regions = tuple(_region(flow, same, device) for same in found.values())
    return ModelExplanation(device.name, regions, tuple(_operators(flow, parted, [*found])))


def _region(flow: Dataflow, same: Sequence[ChainMatch], device: Device) -> ExplainedRegion:
    first = same[0]
    cut = unfused_cut(first.chain)
    return ExplainedRegion(
        first.chain.name,
        tuple(flow.operator(v) for v in first.bindings),
        len(same),
        first.saved,
        len(cut),
        _predicted([first.chain], device),
        _predicted(pieces(first.chain, cut), device) if len(cut) > 1 else None,
    )


def _predicted(chains: Sequence[Chain], device: Device) -> float | None:
    backend, options = backend_of(device), TuneOptions()
    seconds = sum(expected(chain, device, options, backend) for chain in chains)
    return seconds if math.isfinite(seconds) else None


def _operators(
    flow: Dataflow, parted: Partition, keys: Sequence[str]
) -> Iterator[ExplainedOperator]:
    inside = {v: keys.index(m.chain.key) for m in parted.matches for v in m.bindings}
    for v in flow.order:
        if not isinstance(flow.values[v], relax.Call):
            continue  # a part of several results, or several together
        yield ExplainedOperator(
            v.name, flow.operator(v), _form(v), inside.get(v), parted.left.get(v)
        )


def _form(v: relax.Var) -> str:
    if isinstance(v.ty, relax.TupleType):
        return f"{len(v.ty.fields)} results"
    shape = extents(v)
    if not isinstance(v.ty, relax.TensorType):
        return type(v.ty).__name__
    return f"{dtype(v)} ?" if shape is None else tensor_form(dtype(v), shape)
