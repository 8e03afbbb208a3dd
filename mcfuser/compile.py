"""Compiles an ONNX model to one module: finds its chains, tunes them, and installs their
kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from mmap import mmap
from typing import Any

import numpy as np

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.build import DecidedModel, build_buckets
from mcfuser.building import ModuleToBuild
from mcfuser.chain import flops
from mcfuser.compiled_report import compilation_report, products_of
from mcfuser.decide import (
    CHOOSING,
    ModelTuning,
    decide_all,
    decision_words,
    partition_for,
    rival,
)
from mcfuser.device import Device
from mcfuser.devices.catalogue import HOST
from mcfuser.errors import DeviceError, InputError
from mcfuser.extents import BUCKETS, InputShapes, highest, ranged
from mcfuser.graph.dataflow import weight_count
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.dynamic.buckets import LoadedBuckets, load_buckets
from mcfuser.graph.dynamic.choice import Box
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import NOTHING, Loaded, bound, load
from mcfuser.graph.partition import ModelProduct
from mcfuser.graph.price import STARTING, Price
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.graph.wire import ModelBytes
from mcfuser.lock import BoxPin, Lock
from mcfuser.measure.worker import Worker
from mcfuser.model.least import least
from mcfuser.resume import resume
from mcfuser.tune import listers
from mcfuser.tune.cover import Decision, expected_in_pieces
from mcfuser.tune.expected import expected
from mcfuser.tune.locked import LockedKernels
from mcfuser.tune.progress import ChainPlace, Listener, Note, Progress, unheard
from mcfuser.tune.tuned import Cache, RetuneCache, TuneOptions, Use
from mcfuser.whole import WholeModules


@dataclass(frozen=True)
class CompiledModel:
    """A compiled module (the bytes of a shared library, which may be mapped), the report of its
    compilation, and what it was built from.

    A model with run-time extents has several `buckets`, the largest of which is `decided`.
    """

    module: bytes | mmap
    report: dict[str, Any]
    decided: DecidedModel
    buckets: LoadedBuckets | None = None


@dataclass(frozen=True)
class LockedBuild:
    """A lock that a module is built from, the name of its file, and the buckets that it has for the
    model; None where it has none."""

    lock: Lock
    file: str
    buckets: tuple[BoxPin, ...] | None = None


def compile_model(
    model: ModelBytes,
    device: Device,
    cache: Cache,
    options: TuneOptions,
    shapes: InputShapes,
    listener: Listener = unheard,
    end: float | None = None,
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
    narrow: str | None = None,
    buckets: int = BUCKETS,
    in_place: Mapping[str, str] = NOTHING,
    locked: LockedBuild | None = None,
) -> CompiledModel:
    """The compiled module of an ONNX model for a device.

    `shapes` fixes the inputs' dynamic dimensions, or gives ranges for them, which become `buckets`
    at most; `folder` has the model's external data. The products of a float32 model have operands
    of the type `narrow` (float16 or bfloat16) where that is given. `in_place` has the outputs that
    are written into the memory of inputs, by these; the shapes must be fixed then.
    Tuning ends after `options.timeout` seconds, or early enough for the module to be built by `end`
    (time.monotonic) where that is given; where it is not, each bucket has so many seconds. Chains
    without a measured kernel by then have the model's choice, or are left to TVM. Where a lock is
    given (`locked`), the chains' kernels and covers are the lock's: nothing is searched, and the
    cache is left alone.
    Raises DeviceError where no module can be built here, or the device cannot run it, InputError
    where the model cannot be used or is larger than the limits allow, LockMiss where it cannot be
    built as locked, and LimitError where there is no time for that.
    """
    begun, spent = time.monotonic(), time.process_time()
    backend = backend_of(device)
    if in_place and ranged(shapes):
        raise InputError(
            "a model is updated in place at fixed shapes only, and a range was given; give every "
            "input one shape"
        )
    if options.retune:
        cache, options = RetuneCache(cache), replace(options, retune=False)
    if (lacking := backend.lacking()) is not None:
        raise DeviceError(f"no module for device '{device.name}' can be built: {lacking}")
    listener(Progress("import"))
    with ExitStack() as stack:
        worker = Worker(backend, device)
        stack.callback(listers.stop)
        stack.callback(worker.stop)
        worker.warm()
        boxes = _boxes(locked, shapes)
        loaded, dynamic = _loaded(
            model, device, shapes, limits, folder, narrow, buckets, in_place, boxes
        )
        if (why := backend.refusal(loaded[0].module)) is not None:
            raise DeviceError(f"device '{device.name}' {why}")
        took, worked = time.monotonic() - begun, time.process_time() - spent
        price = _price(device, backend, options, locked)
        parted = [partition_for(one, device, price) for one in loaded]
        matches = [m for p in parted for m in p.matches]
        if end is None:  # each bucket has the time of a model
            options = replace(options, timeout=options.timeout * len(loaded))
        distinct = len(places(matches))
        wanted = begun + options.timeout if locked is None else math.inf
        left = math.inf if end is None else end - time.monotonic()
        weights = max(weight_count(one.module["main"]) for one in loaded)
        module = ModuleToBuild(took, worked, distinct, backend, wanted, end, left, weights)
        building = module.seconds()
        deadline = module.tuned_by(building)
        run = ModelTuning(
            device, cache, options, listener, worker, deadline, building, module=module
        )
        run.give_up = deadline + CHOOSING if end is not None and module.leaves else math.inf
        listener(Note(_found(matches, distinct, products_of(parted))))
        whole = WholeModules(partial(_drawn, model, shapes, limits, folder, options.seed))
        if locked is None:
            decisions = decide_all(run, matches)
            parted = [
                rival(run, one, part, price, decisions, whole if dynamic is None else None)
                for one, part in zip(loaded, parted, strict=True)
            ]
            whole.keep(parted[0])
            matches = [m for p in parted for m in p.matches]
            decisions = {key: decisions[key] for key in places(matches)}
            decisions = resume(run, matches, decisions)
        else:
            decisions = _as_locked(run, locked, matches)
        at_hand = device.name == HOST or worker.opened
        missing = None if at_hand else worker.refused(run.deadline)
    decided = [
        DecidedModel(device, backend, one, part, decisions, missing)
        for one, part in zip(loaded, parted, strict=True)
    ]
    if locked is None:
        cache.note(_uses(matches, decisions))
    tuned = time.monotonic()
    listener(Progress("build", left=run.building))
    library = whole.module(decided[0]) if dynamic is None else build_buckets(dynamic, decided)
    seconds = {"tuning": tuned - begun, "building": time.monotonic() - tuned}
    report = compilation_report(options, decided, matches, decisions, seconds, dynamic)
    report["in_place"] = dict(loaded[0].in_place)
    report["external"] = list(folder.files) if folder is not None else []
    listener(Progress("done", 1, 1, left=0.0))
    return CompiledModel(library, report, decided[-1], dynamic)


def _loaded(
    model: ModelBytes,
    device: Device,
    shapes: InputShapes,
    limits: ModelLimits,
    folder: DataFolder | None,
    narrow: str | None,
    most: int,
    in_place: Mapping[str, str],
    boxes: Sequence[Box] | None,
) -> tuple[list[Loaded], LoadedBuckets | None]:
    """The model, or its buckets where its inputs have ranges of extents."""
    backend = backend_of(device)
    integers = backend.integers
    if not ranged(shapes):
        extents, recurrences = highest(shapes), backend.recurrences(device)
        whole = load(model, extents, limits, folder, narrow, in_place, integers, recurrences)
        return [whole], None

    def predicted(loaded: Loaded) -> float:
        chains = [m.chain for m in partition_for(loaded, device).matches]
        peak = device.throughput("float32")
        computing = sum(map(flops, chains)) / peak
        return max(least(chains, device), computing) + STARTING * len(chains)

    dynamic = load_buckets(
        model,
        shapes,
        limits,
        folder,
        most,
        predicted,
        narrow,
        boxes,
        integers,
        backend.recurrences(device),
    )
    return [b.loaded for b in dynamic.buckets], dynamic


def _drawn(
    model: ModelBytes,
    shapes: InputShapes,
    limits: ModelLimits,
    folder: DataFolder | None,
    seed: int,
) -> Feeds:
    """Random inputs of the model, whose shapes are fixed."""
    return inputs(bound(model, highest(shapes), limits, folder), np.random.default_rng(seed))


def price_on(device: Device, backend: Backend, options: TuneOptions) -> Price:
    """The price of a chain: what the model predicts for the kernels that are likely to compute it,
    as if all candidates could be measured."""
    one = partial(expected, device=device, options=options, backend=backend)
    return partial(expected_in_pieces, device=device, predict=one)


def _price(
    device: Device, backend: Backend, options: TuneOptions, locked: LockedBuild | None
) -> Price:
    """The price of a chain: what the model predicts; where there is a lock, nothing for its chains
    and a second for others.

    Candidates count as if they could be measured: the chains of a model do not depend on whether
    the device is at hand.
    """
    there = locked.lock.devices.get(device.key) if locked is not None else None
    if there is None:
        return price_on(device, backend, options)
    return lambda chain: 0.0 if chain.key in there.chains else 1.0


def _as_locked(
    run: ModelTuning, locked: LockedBuild, matches: Sequence[ChainMatch]
) -> dict[str, Decision]:
    """The decision that a lock has for each distinct chain."""
    kernels = LockedKernels(locked.lock, locked.file, run.worker, run.options.seed, run.give_up)
    found = [same[0].chain for same in places(matches).values()]
    decisions = {}
    for number, chain in enumerate(found, 1):
        place = ChainPlace(number, len(found), chain.name)
        run.listener(Progress("rebuild", chain=place))
        decisions[chain.key] = kernels.decision(chain)
        for words in decision_words(place, decisions[chain.key]):
            run.listener(Note(words))
    return decisions


def _boxes(locked: LockedBuild | None, shapes: InputShapes) -> list[Box] | None:
    """The buckets that a lock has. Raises InputError where it has none for a model with ranges."""
    if locked is None or not ranged(shapes):
        return None
    if locked.buckets is None:
        raise InputError(
            f"{locked.file} has no buckets for this model: it was locked with other bytes or "
            "without ranges; write the lock anew with --update-lock"
        )
    return [Box(dict(b.low), dict(b.high)) for b in locked.buckets]


def _uses(matches: Sequence[ChainMatch], decisions: Mapping[str, Decision]) -> Iterator[Use]:
    """The kernels that are used in each place of the model, and those that they were compared
    with."""
    for match in matches:
        key = match.chain.key
        for tuned in (t for cover in decisions[key].covers for t in cover.kernels):
            yield Use(key, match.chain.name, tuned.key)


def _found(matches: Sequence[ChainMatch], distinct: int, products: Sequence[ModelProduct]) -> str:
    """What the model was found to have, in a sentence."""
    alone = sum(p.chain is None for p in products)
    return (
        f"the model has {distinct} distinct chains in {len(matches)} places; {alone} of its "
        f"{len(products)} matrix products are in none"
    )
