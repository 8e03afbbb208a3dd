"""Explains a model before it is compiled: its regions, what they save, what else was considered,
and why the rest is in none.

Nothing is compiled or measured, and no device is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tvm import relax

from mcfuser.backends import backend_of
from mcfuser.chain import Chain
from mcfuser.compile import price_on
from mcfuser.decide import partition_for
from mcfuser.device import Device
from mcfuser.graph.dataflow import Dataflow, dataflow, dtype, extents
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition
from mcfuser.graph.segment import Considered, Verdict
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.graph.tensors import tensor_form
from mcfuser.graph.wire import ModelBytes
from mcfuser.tune.cover import most_pieces, pieces
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
class ExplainedAlternative:
    """A region that was considered beside others with the same operators, at one or more `places`.

    `seconds` are predicted for it as one kernel, or are the least that it can take where it "cannot
    win" and was not priced. `cover_seconds` are those of the cheapest kernels for all operators of
    the overlapping regions with this one among them, `least_seconds` without that condition. Each
    is None where there is no candidate. `verdict` and `reason` are those of
    mcfuser.graph.segment.Considered.
    """

    name: str
    operators: tuple[str, ...]
    places: int
    seconds: float | None
    cover_seconds: float | None
    least_seconds: float | None
    verdict: Verdict
    reason: str | None


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
    """The regions and the operators of a model, for a device, in the order in which they run, and
    the regions that had alternatives."""

    device: str
    regions: tuple[ExplainedRegion, ...]
    operators: tuple[ExplainedOperator, ...]
    considered: tuple[ExplainedAlternative, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explain(
    model: ModelBytes,
    device: Device,
    shapes: Mapping[str, tuple[int, ...]],
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
    narrow: str | None = None,
) -> ModelExplanation:
    """The explanation of an ONNX model for a device; arguments and errors are those of
    mcfuser.compile.compile_model."""
    backend = backend_of(device)
    loaded = load(
        model, shapes, limits, folder, narrow, integers=backend.integers,
        recurrences=backend.recurrences(device),
    )  # fmt: skip
    parted = partition_for(loaded, device, price_on(device, backend, TuneOptions()))
    flow = dataflow(loaded.module["main"])
    found = places(parted.matches)
    regions = tuple(_region(flow, same, device) for same in found.values())
    operators = tuple(_operators(flow, parted, [*found]))
    considered = tuple(_alternatives(flow, parted.considered))
    return ModelExplanation(device.name, regions, operators, considered)


def _region(flow: Dataflow, same: Sequence[ChainMatch], device: Device) -> ExplainedRegion:
    first = same[0]
    cut = most_pieces(first.chain, device)
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


def _alternatives(
    flow: Dataflow, considered: Sequence[Considered]
) -> Iterator[ExplainedAlternative]:
    """The regions that were considered; equal ones, of equal layers, are one."""
    found: dict[ExplainedAlternative, tuple[str, int]] = {}
    for c in considered:
        members = c.region.members
        name = f"{flow.name(members[0])}..{flow.name(members[-1])}"
        operators = tuple(flow.operator(v) for v in members)
        one = ExplainedAlternative(
            "", operators, 1, c.seconds, c.total, c.least, c.verdict, c.reason
        )
        first, places = found.get(one, (name, 0))
        found[one] = first, places + 1
    for one, (name, places) in found.items():
        yield replace(one, name=name, places=places)


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
