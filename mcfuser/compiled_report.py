"""The report of a compilation, as a document: chains, kernels, products, and what runs when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

from mcfuser.backend import Backend
from mcfuser.build import DecidedModel
from mcfuser.chain import TF32
from mcfuser.device import Device
from mcfuser.graph.dynamic.buckets import LoadedBuckets
from mcfuser.graph.dynamic.describe import dynamic_report
from mcfuser.graph.load import Loaded, ModelPort
from mcfuser.graph.outline import MOST, outline
from mcfuser.graph.partition import ModelProduct, Partition
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.lock import BoxPin
from mcfuser.model.work import chain_work
from mcfuser.tune.cover import Decision
from mcfuser.tune.locked import model_pin
from mcfuser.tune.tuned import Tuned, TuneOptions

EXACT = "{device} multiplies float32 numbers as they are: tf32 changes nothing there"
"""What is said where kernels may round and a device has nothing to gain by it."""
SLOWER = "this CPU widens narrow values as it reads them: the float32 module may be faster"
"""What is said of a narrowed module that runs on the host."""


def compilation_report(
    options: TuneOptions,
    decided: Sequence[DecidedModel],
    matches: Sequence[ChainMatch],
    decisions: Mapping[str, Decision],
    seconds: Mapping[str, float],
    dynamic: LoadedBuckets | None,
) -> dict[str, Any]:
    """What is told of a compilation: of each chain, kernel and product, and of the ports and the
    order of a model, or of its buckets."""
    device, backend, loaded = decided[0].device, decided[0].backend, decided[-1].loaded
    parted, found = [d.parted for d in decided], places(matches)
    keys = list(found)
    fused_at = {i for i, match in enumerate(matches) if _fused(decisions[match.chain.key])}
    chains = {m.chain.key: (m.chain, decisions[m.chain.key]) for m in reversed(matches)}
    report = {
        "device": device.name,
        "arch": device.arch,
        "units": device.units,
        "seed": options.seed,
        "times": _times(decisions),
        "chains": [_chain(found[k], decisions[k], device) for k in keys],
        "products": [_product(p, matches, keys, fused_at, device) for p in products_of(parted)],
        "seconds": {k: round(v, 3) for k, v in seconds.items()},
        "versions": {n: version(n) for n in ("mcfuser", "apache-tvm", "onnx", "numpy")},
        "outline": _outline(loaded, parted[-1], keys),
        "precision": _precision(loaded, device, backend),
        "lock": model_pin(device, backend, chains, _box_pins(dynamic)).model_dump(mode="json"),
    }
    if dynamic is not None:
        numbers = [sorted({keys.index(m.chain.key) for m in p.matches}) for p in parted]
        return report | dynamic_report(dynamic, numbers)
    report["inputs"] = [_port(p) for p in loaded.inputs]
    report["outputs"] = [_port(p) for p in loaded.outputs]
    return report


def _outline(loaded: Loaded, parted: Partition, keys: Sequence[str]) -> dict[str, Any]:
    """The order in which a model's chains and its other operators run; `more` steps are left out.
    Of a model with ranges of extents it is that of its largest bucket."""
    steps = outline(loaded.module, parted, keys)
    return {"steps": [s.to_json() for s in steps[:MOST]], "more": max(0, len(steps) - MOST)}


def _precision(loaded: Loaded, device: Device, backend: Backend) -> dict[str, Any] | None:
    """How a model was narrowed, as the report has it; None where its own types stand."""
    if loaded.narrowing is None:
        return None
    narrowing = loaded.narrowing
    note = None
    if narrowing.dtype == TF32 and not backend.tf32(device):
        note = EXACT.format(device=device.name)
    elif narrowing.dtype != TF32 and backend.on_host:
        note = SLOWER
    return {**asdict(narrowing), "note": note}


def products_of(parted: Sequence[Partition]) -> list[ModelProduct]:
    """The products of several modules, whose chains are counted through."""
    made, before = [], 0
    for part in parted:
        for p in part.products:
            made.append(p if p.chain is None else replace(p, chain=p.chain + before))
        before += len(part.matches)
    return made


def _box_pins(dynamic: LoadedBuckets | None) -> tuple[BoxPin, ...] | None:
    if dynamic is None:
        return None
    return tuple(BoxPin(low=dict(b.box.low), high=dict(b.box.high)) for b in dynamic.buckets)


def _times(decisions: Mapping[str, Decision]) -> str:
    """Whether the kernels' times were measured, for the report."""
    known = [t.measured is not None for d in decisions.values() for t in d.kernels]
    if not known:
        return "of no kernel: all is left to TVM"
    if all(known):
        return "measured"
    return "measured in part, the others predicted" if any(known) else "predicted, not measured"


def _fused(decision: Decision) -> bool:
    """Whether a chain runs in fewer kernels than its unfused cut has pieces."""
    return 0 < len(decision.kernels) < len(decision.unfused)


def _chain(places: Sequence[ChainMatch], decision: Decision, device: Device) -> dict[str, Any]:
    chain = places[0].chain
    return {
        "name": chain.name,
        "key": chain.key,
        "places": [match.chain.name for match in places],
        "extents": {a.name: chain.size(a.name) for a in chain.axes},
        "operators": [str(o) for o in chain.operators],
        "fused": _fused(decision),
        "cut": list(decision.kept.cut) if decision.kept is not None else [],
        "reason": decision.words,
        "saved_bytes": places[0].saved,
        "fused_seconds": decision.fused_seconds,
        "unfused_seconds": decision.unfused_seconds,
        "sure": decision.sure,
        "ratio": list(decision.ratio) if decision.ratio is not None else None,
        "conditions": dict(decision.conditions),
        "candidate": _kernel(decision.fused, device) if decision.fused is not None else None,
        "kernels": [_kernel(t, device) for t in decision.kernels],
    }


def _kernel(tuned: Tuned, device: Device) -> dict[str, Any]:
    return {
        "key": tuned.key,
        "chain_key": tuned.chain.key,
        "operators": [o.out for o in tuned.chain.operators],
        "expression": tuned.expression,
        "tiles": dict(tuned.tiles),
        "split": tuned.split,
        "parts": tuned.parts,
        "lowering": dict(tuned.lowering),
        "predicted_seconds": tuned.predicted,
        "measured_seconds": tuned.measured,
        "error": tuned.error,
        "candidates": dict(tuned.stages),
        "trials": tuned.trials,
        "ended": tuned.budget.ended,
        "search": str(tuned.budget),
        "missed": tuned.missed,
        "stale": tuned.stale,
        "conditions": dict(tuned.conditions),
        "failed": dict(tuned.failed),
        "resources": dict(tuned.resources),
        "work": chain_work(tuned.chain, device).to_json(),
    }


def _product(
    p: ModelProduct,
    matches: Sequence[ChainMatch],
    keys: Sequence[str],
    fused_at: set[int],
    device: Device,
) -> dict[str, Any]:
    """A product as the report has it; `chain` is a number in the report's `chains`."""
    reason = p.reason
    chain = keys.index(matches[p.chain].chain.key) if p.chain is not None else None
    if p.chain is not None and p.chain in fused_at:
        reason = None
    elif chain is not None and reason is None:
        reason = f"chain {chain + 1} was not fused: its result says why"
    return {
        "name": p.name,
        "shape": {"batch": p.batch, "rows": p.rows, "columns": p.columns, "depth": p.depth},
        "dtype": p.dtype,
        "phi": p.phi,
        "bound": device.throughput(p.dtype) / device.bandwidth,
        "mbci": p.mbci,
        "chain": chain,
        "reason": reason,
    }


def _port(p: ModelPort) -> dict[str, Any]:
    return {"name": p.name, "shape": list(p.shape), "dtype": p.dtype}
