"""From an ONNX model to one compiled module: the chains found, tuned, compared, put back."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from mcfuser.backend import Backend, Function, Names
from mcfuser.backends import backend_of
from mcfuser.chain import Chain, unfused_cut
from mcfuser.device import Device
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import ModelPort, load
from mcfuser.graph.partition import ChainMatch, ModelProduct, partition
from mcfuser.graph.refusal import refused
from mcfuser.measure.rounds import Interleaved
from mcfuser.measure.worker import Worker
from mcfuser.tune.cover import Decision, decide, pieces
from mcfuser.tune.expected import expected
from mcfuser.tune.tuned import Cache, Progress, RetuneCache, Tuned, TuneOptions, Use, names_of
from mcfuser.tune.tuner import compare, kept_kernel, tune

BUILDING = 1.5
"""What building a module takes, as a multiple of what importing its model took, and"""
BUILT = 1.0
"""seconds of a machine that does nothing else. So much is left of a limit when tuning ends."""
CHOOSING = 2.0
"""Seconds after the end of tuning in which the model may still choose kernels for what is left."""


@dataclass(frozen=True)
class CompiledModel:
    """The exported module, a shared library, and the report of how it came to be."""

    module: bytes
    report: dict[str, Any]


@dataclass
class _Run:
    """One compilation while it goes on."""

    device: Device
    cache: Cache
    options: TuneOptions
    progress: Progress
    worker: Worker
    deadline: float
    chains: int = 1
    at: int = 0
    searches: int = 1
    share: float = 60.0
    """The seconds of one search if all of them took as long."""

    @property
    def measured(self) -> bool:
        """The device is at hand, so candidates can be measured."""
        return self.worker.refused(self.deadline) is None

    def tune(self, chain: Chain) -> Tuned:
        """Tunes within a fair share of the time that is left for the searches still to come."""
        now = time.monotonic()
        left = max(0.0, self.deadline - now)
        share = left / max(1, self.searches)
        self.searches -= 1

        def tell(stage: str, done: int, total: int) -> None:
            self.progress(f"{stage} chain {self.at + 1} of {self.chains}", done, total)

        nominal = replace(self.options, timeout=self.share)
        return tune(
            chain, self.device, self.cache, nominal, tell, self.worker, now + share,
            self.deadline + CHOOSING,
        )  # fmt: skip

    def foresee(self, chain: Chain) -> float:
        """Seconds that the model expects; infinity where there is no time to ask it."""
        if time.monotonic() >= self.deadline:
            return math.inf
        backend = self.worker.backend
        return expected(chain, self.device, self.options, backend, self.measured)

    def compare(
        self, chain: Chain, programs: Sequence[Sequence[tuple[Tuned, Chain]]]
    ) -> Interleaved:
        """The last program has the most kernels: it is kept unless another one is surely faster."""
        last = len(programs) - 1
        return compare(self.worker, chain, programs, self.options.seed, self.deadline, last)


def compile_model(
    model: bytes,
    device: Device,
    cache: Cache,
    options: TuneOptions,
    shapes: Mapping[str, tuple[int, ...]],
    progress: Progress = lambda stage, done, total: None,
    end: float | None = None,
    limits: ModelLimits = DEFAULTS,
) -> CompiledModel:
    """The compiled module of an ONNX model for a device.

    `shapes` fixes the inputs' dynamic dimensions. Tuning ends after `options.timeout` seconds, or
    early enough for the module to be built by `end` (time.monotonic) where that is given; chains
    without a measured kernel by then have the model's choice, or are left to TVM. Raises
    InputError where the model cannot be used or is larger than the limits allow.
    """
    begun, spent = time.monotonic(), time.process_time()
    backend = backend_of(device)
    if options.retune:
        cache, options = RetuneCache(cache), replace(options, retune=False)
    progress("import", 0, 0)
    with ExitStack() as stack:
        worker = Worker(backend, device)
        stack.callback(worker.stop)
        worker.warm()
        loaded = load(model, shapes, limits)
        parted = partition(loaded.module, device.throughput("float32"), device.bandwidth)
        took, worked = time.monotonic() - begun, time.process_time() - spent
        deadline = _tuned_by(begun + options.timeout, end, took, worked)
        run = _Run(device, cache, options, progress, worker, deadline)
        decisions = _decide_all(run, parted.found)
    cache.note(_uses(parted.found, decisions))
    tuned = time.monotonic()
    progress("build", 0, 0)
    replacements, binaries = _replacements(parted.found, decisions, backend)
    with refused("TVM cannot build the module"):
        module = backend.library(install(loaded.module, replacements), binaries, device)
    seconds = {"tuning": tuned - begun, "building": time.monotonic() - tuned}
    report = _report(device, options, parted.found, parted.products, decisions, seconds)
    report["inputs"] = [_port(p) for p in loaded.inputs]
    report["outputs"] = [_port(p) for p in loaded.outputs]
    progress("done", 1, 1)
    return CompiledModel(module, report)


def _tuned_by(wanted: float, end: float | None, took: float, worked: float) -> float:
    """When tuning must end, given what the import took, in seconds, and how long it had a
    processor: a busy machine is as much slower at building."""
    if end is None:
        return wanted
    slower = max(1.0, took / max(worked, 1e-3))
    return min(wanted, end - BUILDING * took - BUILT * slower)


def _port(p: ModelPort) -> dict[str, Any]:
    return {"name": p.name, "shape": list(p.shape), "dtype": p.dtype}


# --- deciding -------------------------------------------------------------------------------


def _decide_all(run: _Run, found: Sequence[ChainMatch]) -> dict[str, Decision]:
    """One decision for each distinct chain."""
    distinct = {f.chain.key: f.chain for f in found}
    run.chains = len(distinct)
    alone = [len(unfused_cut(chain)) for chain in distinct.values()]
    run.searches = sum(1 + n if n > 1 else 1 for n in alone)
    run.share = run.options.timeout / max(1, run.searches)
    decisions = {}
    for run.at, (key, chain) in enumerate(distinct.items()):
        decisions[key] = decide(
            chain, run.device, run.tune, run.foresee, partial(run.compare, chain)
        )
    return decisions


def _uses(found: Sequence[ChainMatch], decisions: Mapping[str, Decision]) -> Iterator[Use]:
    """The kernels that every place's chain has, or was compared with."""
    for f in found:
        key = f.chain.key
        for tuned in (t for way in decisions[key].ways for t in way.kernels):
            yield Use(key, f.chain.name, tuned.key)


# --- installing -----------------------------------------------------------------------------


def _replacements(
    found: Sequence[ChainMatch], decisions: Mapping[str, Decision], backend: Backend
) -> tuple[list[Replacement], list[Any]]:
    """The kernels for every place, and the binaries they launch; places whose kernels are equal
    share the function."""
    shared: dict[object, Function] = {}
    made = []
    for f in found:
        kept = decisions[f.chain.key].kept
        if kept is None:
            continue
        installed = []
        for tuned, chain in zip(kept.kernels, pieces(f.chain, kept.cut), strict=True):
            physical = {n: f.shapes.get(n, chain.shape(n)) for n in (*chain.inputs, *chain.outputs)}
            key = (tuned.key, tuple(physical.values()))
            if key not in shared:
                name = f"{re.sub(r'[^A-Za-z0-9_]', '_', chain.name)}_{len(shared)}"
                names = Names(*names_of(tuned, chain))
                shared[key] = backend.function(
                    kept_kernel(tuned), chain, names, f"chain_{name}", physical
                )
            made_once = shared[key]
            packed = backend.packed(made_once, chain, f.constants)
            installed.append(
                Installed(made_once.name, chain, made_once.primfunc, packed, made_once.counters)
            )
        made.append(Replacement(f, tuple(installed)))
    return made, [f.binary for f in shared.values() if f.binary is not None]


# --- reporting ------------------------------------------------------------------------------


def _report(
    device: Device,
    options: TuneOptions,
    found: Sequence[ChainMatch],
    products: Sequence[ModelProduct],
    decisions: Mapping[str, Decision],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    places: dict[str, list[ChainMatch]] = {}
    for f in found:
        places.setdefault(f.chain.key, []).append(f)
    keys = list(places)
    fused_at = {i for i, f in enumerate(found) if _fused(f.chain, decisions[f.chain.key])}
    return {
        "device": device.name,
        "arch": device.arch,
        "units": device.units,
        "seed": options.seed,
        "times": _times(decisions),
        "chains": [_chain(places[k], decisions[k], device) for k in keys],
        "products": [_product(p, found, keys, fused_at, device) for p in products],
        "seconds": {k: round(v, 3) for k, v in seconds.items()},
        "versions": {n: version(n) for n in ("mcfuser", "apache-tvm", "onnx", "numpy")},
    }


def _times(decisions: Mapping[str, Decision]) -> str:
    """Where the kernels' times are from."""
    known = [t.measured is not None for d in decisions.values() for t in d.kernels]
    if not known:
        return "of no kernel: all is left to TVM"
    if all(known):
        return "measured"
    return "measured in part, the others predicted" if any(known) else "predicted, not measured"


def _fused(chain: Chain, decision: Decision) -> bool:
    """In fewer kernels than it has pieces."""
    return 0 < len(decision.kernels) < len(unfused_cut(chain))


def _chain(places: Sequence[ChainMatch], decision: Decision, device: Device) -> dict[str, Any]:
    chain = places[0].chain
    return {
        "name": chain.name,
        "key": chain.key,
        "places": [f.chain.name for f in places],
        "extents": {a.name: chain.size(a.name) for a in chain.axes},
        "operators": [str(o) for o in chain.operators],
        "fused": _fused(chain, decision),
        "reason": _reason(decision),
        "saved_bytes": places[0].saved,
        "fused_seconds": decision.fused_seconds,
        "unfused_seconds": decision.unfused_seconds,
        "sure": decision.sure,
        "ratio": list(decision.ratio) if decision.ratio is not None else None,
        "conditions": dict(decision.conditions),
        "candidate": _kernel(decision.fused) if decision.fused is not None else None,
        "kernels": [_kernel(t) for t in decision.kernels],
    }


def _reason(decision: Decision) -> str:
    """Why these kernels, and whether they were chosen without being measured."""
    unmeasured = any(t.measured is None for t in decision.kernels)
    if not unmeasured or "predicted, not measured" in decision.reason:
        return decision.reason
    return f"{decision.reason}, predicted, not measured"


def _kernel(tuned: Tuned) -> dict[str, Any]:
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
        "conditions": dict(tuned.conditions),
        "failed": dict(tuned.failed),
        "resources": dict(tuned.resources),
    }


def _product(
    p: ModelProduct,
    found: Sequence[ChainMatch],
    keys: Sequence[str],
    fused_at: set[int],
    device: Device,
) -> dict[str, Any]:
    """A product's place; its chain is a number in the report's `chains`."""
    reason = p.reason
    chain = keys.index(found[p.chain].chain.key) if p.chain is not None else None
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
