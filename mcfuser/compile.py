"""Compiles an ONNX model to one module: finds its chains, tunes them, and installs their
kernels."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from mmap import mmap
from typing import Any

import tvm
from tvm import relax

from mcfuser.backend import Backend, Function, Names
from mcfuser.backends import backend_of
from mcfuser.chain import Chain, flops, nbytes, unfused_cut
from mcfuser.device import Device
from mcfuser.devices.catalogue import HOST
from mcfuser.errors import InputError
from mcfuser.extents import BUCKETS, InputShapes, highest, ranged
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.dynamic.buckets import LoadedBuckets, joined, load_buckets
from mcfuser.graph.dynamic.choice import Box
from mcfuser.graph.dynamic.describe import dynamic_report
from mcfuser.graph.external import DataFolder
from mcfuser.graph.intermediate import returning
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import NOTHING, Loaded, ModelPort, load
from mcfuser.graph.narrow import summed_in_float32
from mcfuser.graph.outline import MOST, outline
from mcfuser.graph.partition import ModelProduct, Partition, partition
from mcfuser.graph.price import STARTING, Price
from mcfuser.graph.refusal import refused
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.graph.weights import aligned
from mcfuser.graph.wire import ModelBytes
from mcfuser.lock import BoxPin, Lock
from mcfuser.measure.rounds import MARGIN, Interleaved
from mcfuser.measure.worker import Worker
from mcfuser.model.least import least
from mcfuser.model.work import chain_work
from mcfuser.tune.cover import Decision, decide, pieces
from mcfuser.tune.expected import expected
from mcfuser.tune.locked import LockedKernels, model_pin
from mcfuser.tune.progress import ChainPlace, Listener, Note, Progress, unheard
from mcfuser.tune.tuned import Cache, RetuneCache, Tuned, TuneOptions, Use, names_of
from mcfuser.tune.tuner import compare, kept_kernel, tune

BUILDING = 1.5
"""The time that building a module takes, as a multiple of the time that importing its model
took."""
BUILT = 1.0
"""Seconds that building takes besides that on an idle machine."""
CHAIN_BUILT = 0.2
"""Seconds that building takes for each distinct chain on an idle machine: 0.1 to 0.25 were measured
on networks of 6 to 50 chains. Tuning leaves the sum of the three."""
SLOWER = "this CPU widens narrow values as it reads them: the float32 module may be faster"
"""What is said of a narrowed module that runs on the host."""
_REASONS = 3  # for which candidates failed that are told of each kernel, the commonest first
CHOOSING = 2.0
"""Seconds after tuning's end in which the model may still choose kernels for untuned chains, where
the module must be there by some time."""
USEFUL = 4.0
"""Seconds without which a search measures nothing, or next to nothing, on two busy cores. With more
builders it may be less (Builder.enough)."""
SAVES = 0.1
"""The share of a chain's time that its fused kernel must be able to save to be tried where the time
for searches is short."""
CHOICE = 0.5
"""Seconds in which the model chooses a kernel: 0.1 to 0.7 were measured."""


@dataclass(frozen=True)
class DecidedModel:
    """A model with the kernels that were chosen for its chains, before its module is built.

    `missing` says why modules for its device cannot run here, None where they can.
    """

    device: Device
    backend: Backend
    loaded: Loaded
    parted: Partition
    decisions: Mapping[str, Decision]
    missing: str | None

    @property
    def narrow(self) -> str | None:
        """The type to which the products were narrowed; None where they were not."""
        return self.loaded.narrowing.dtype if self.loaded.narrowing is not None else None

    def kernels(self, match: ChainMatch) -> int:
        """The number of kernels that compute a chain; 0 where it is left to TVM."""
        return len(self.decisions[match.chain.key].kernels)


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


@dataclass
class _Run:
    """One compilation while it goes on."""

    device: Device
    cache: Cache
    options: TuneOptions
    listener: Listener
    worker: Worker
    deadline: float
    building: float
    """Seconds that building the module is expected to take."""
    begun: float = field(default_factory=time.monotonic)
    place: ChainPlace | None = None
    planned: int = 1
    searches: int = 1
    give_up: float = math.inf
    """When the model chooses no more kernels (time.monotonic)."""
    share: float = 60.0
    """Seconds of one search, if all searches took the same time: what a kept kernel is judged
    by."""

    @property
    def measured(self) -> bool:
        """The device is at hand, so candidates can be measured."""
        return self.worker.refused(self.deadline) is None

    def tune(self, chain: Chain) -> Tuned:
        """Tunes within a share of the time that is left for the searches still to come: an equal
        one, unless that is too short (`short`)."""
        now = time.monotonic()
        left = max(0.0, self.deadline - now)
        share = left / max(1, self.searches)
        if self.short:
            share = _share(left, self.searches, self.useful)
        self.searches -= 1

        def tell(told: Progress | Note) -> None:
            if isinstance(told, Progress):
                told = replace(told, chain=self.place, left=self.left(now))
            self.listener(told)

        nominal = replace(self.options, timeout=self.share)
        return tune(
            chain,
            self.device,
            self.cache,
            nominal,
            tell,
            self.worker,
            now + share,
            self.give_up,
        )

    @property
    def short(self) -> bool:
        """Whether the searches still to come have too little time for each to measure something.
        Where the device is not at hand they measure nothing, and share what time there is."""
        left = self.deadline - time.monotonic()
        return left < self.useful * self.searches and self.measured

    @property
    def useful(self) -> float:
        """Seconds without which a search measures next to nothing."""
        return min(USEFUL, self.worker.builder.enough)

    def left(self, since: float) -> float:
        """The estimated seconds until the module is built, while a search is under way that began
        at `since` (time.monotonic).

        Each search to come is expected to take the mean time of those that are over, and all of
        them what is left until the deadline at most.
        """
        now, over = time.monotonic(), self.planned - self.searches - 1
        most = max(0.0, self.deadline - now)
        if over <= 0:
            return most + self.building
        mean = (since - self.begun) / over
        this = max(0.0, mean - (now - since))
        return min(most, this + mean * self.searches) + self.building

    def predict(self, chain: Chain) -> float:
        """The seconds that the model predicts for a chain's best candidate; infinity where no time
        is left to choose by it."""
        if time.monotonic() >= self.give_up:
            return math.inf
        backend = self.worker.backend
        return expected(chain, self.device, self.options, backend, self.measured)

    def compare(
        self, chain: Chain, programs: Sequence[Sequence[tuple[Tuned, Chain]]]
    ) -> Interleaved:
        """Times covers of a chain. The last one, with the most kernels, is the baseline."""
        last = len(programs) - 1
        return compare(self.worker, chain, programs, self.options.seed, self.deadline, last)


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
    Raises InputError where the model cannot be used or is larger than the limits allow, LockMiss
    where it cannot be built as locked, and LimitError where there is no time for that.
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
    listener(Progress("import"))
    with ExitStack() as stack:
        worker = Worker(backend, device)
        stack.callback(worker.stop)
        worker.warm()
        boxes = _boxes(locked, shapes)
        loaded, dynamic = _loaded(
            model, device, shapes, limits, folder, narrow, buckets, in_place, boxes
        )
        took, worked = time.monotonic() - begun, time.process_time() - spent
        price = _price(device, backend, options, locked)
        parted = [_parted(one, device, price) for one in loaded]
        matches = [m for p in parted for m in p.matches]
        if end is None:  # each bucket has the time of a model
            options = replace(options, timeout=options.timeout * len(loaded))
        distinct = len(places(matches))
        building = _building(took, worked, distinct, backend.starting)
        wanted = begun + options.timeout if locked is None else math.inf
        deadline = _tuned_by(wanted, end, building)
        run = _Run(device, cache, options, listener, worker, deadline, building)
        run.give_up = deadline + CHOOSING if end is not None else math.inf
        listener(Note(_found(matches, distinct, _products(parted))))
        if locked is None:
            decisions = _decide_all(run, matches)
            parted = [
                _rival(run, one, part, price, decisions)
                for one, part in zip(loaded, parted, strict=True)
            ]
            matches = [m for p in parted for m in p.matches]
            decisions = {key: decisions[key] for key in places(matches)}
        else:
            decisions = _as_locked(run, locked, matches)
        missing = None if device.name == HOST else worker.refused(deadline)
    decided = [
        DecidedModel(device, backend, one, part, decisions, missing)
        for one, part in zip(loaded, parted, strict=True)
    ]
    if locked is None:
        cache.note(_uses(matches, decisions))
    tuned = time.monotonic()
    listener(Progress("build", left=building))
    module = build(decided[0]) if dynamic is None else build_buckets(dynamic, decided)
    seconds = {"tuning": tuned - begun, "building": time.monotonic() - tuned}
    report = _report(device, options, matches, _products(parted), decisions, seconds)
    report["outline"] = _outline(loaded[-1], parted[-1], list(places(matches)))
    report["precision"] = _precision(loaded[-1], backend)
    report["in_place"] = dict(in_place)
    chains = {m.chain.key: (m.chain, decisions[m.chain.key]) for m in reversed(matches)}
    report["lock"] = model_pin(device, backend, chains, _box_pins(dynamic)).model_dump(mode="json")
    report["external"] = list(folder.files) if folder is not None else []
    if dynamic is None:
        report["inputs"] = [_port(p) for p in loaded[0].inputs]
        report["outputs"] = [_port(p) for p in loaded[0].outputs]
    else:
        keys = list(places(matches))
        numbers = [sorted({keys.index(m.chain.key) for m in p.matches}) for p in parted]
        report |= dynamic_report(dynamic, numbers)
    listener(Progress("done", 1, 1, left=0.0))
    return CompiledModel(module, report, decided[-1], dynamic)


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
    if not ranged(shapes):
        return [load(model, highest(shapes), limits, folder, narrow, in_place)], None

    def predicted(loaded: Loaded) -> float:
        chains = [m.chain for m in _parted(loaded, device).matches]
        peak = device.throughput("float32")
        computing = sum(map(flops, chains)) / peak
        return max(least(chains, device), computing) + STARTING * len(chains)

    dynamic = load_buckets(model, shapes, limits, folder, most, predicted, narrow, boxes)
    return [b.loaded for b in dynamic.buckets], dynamic


def _parted(
    loaded: Loaded,
    device: Device,
    price: Price | None = None,
    preferred: AbstractSet[str] = frozenset(),
) -> Partition:
    """The chains of a model, chosen by a `price`, or by a roofline where there is none."""
    peak = device.throughput("float32")
    return partition(loaded.module, peak, device.bandwidth, price, preferred)


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
        return partial(expected, device=device, options=options, backend=backend)
    return lambda chain: 0.0 if chain.key in there.chains else 1.0


def build(
    decided: DecidedModel, returned: Sequence[relax.Var] = (), fused: bool = True
) -> bytes | mmap:
    """The module of a model, which also returns the values `returned`, after its results.

    All is left to TVM unless it is `fused`; a value inside a chain cannot be returned otherwise.
    Raises InputError where TVM cannot build it.
    """
    decisions = decided.decisions if fused else {}
    replacements, binaries = _replacements(decided.parted.matches, decisions, decided.backend)
    with refused("TVM cannot build the module"):
        whole = decided.loaded.module
        whole = returning(whole, returned) if returned else whole
        module = _with_kernels(decided, whole, replacements)
        return decided.backend.library(module, binaries, decided.device)


def build_buckets(dynamic: LoadedBuckets, decided: Sequence[DecidedModel]) -> bytes | mmap:
    """The module of a model with run-time extents, each of whose buckets is decided.

    Raises InputError where TVM cannot build it.
    """
    matches = [m for d in decided for m in d.parted.matches]
    backend, device = decided[0].backend, decided[0].device
    replacements, binaries = _replacements(matches, decided[0].decisions, backend)
    with refused("TVM cannot build the module"):
        modules = []
        for bucket in decided:
            own = {id(m) for m in bucket.parted.matches}
            chosen = [r for r in replacements if id(r.match) in own]
            modules.append(_with_kernels(bucket, bucket.loaded.module, chosen))
        return backend.library(joined(dynamic, modules), binaries, device)


def _with_kernels(
    decided: DecidedModel, module: tvm.IRModule, replacements: Sequence[Replacement]
) -> tvm.IRModule:
    """The module with its kernels; what is left of narrow products is summed in float32, too."""
    installed = install(module, replacements)
    return installed if decided.narrow is None else summed_in_float32(installed)


def _building(took: float, worked: float, chains: int, starting: float) -> float:
    """The seconds that building a module of so many distinct `chains` is expected to take, in a
    process that is `starting` for so long (Backend.starting).

    The import took `took` seconds, and `worked` seconds of processor time. On a busy machine, where
    the first is larger, building is slower by the same factor.
    """
    slower = max(1.0, took / max(worked, 1e-3))
    return BUILDING * took + (BUILT + starting + CHAIN_BUILT * chains) * slower


def _tuned_by(wanted: float, end: float | None, building: float) -> float:
    """When tuning must end (time.monotonic), so that a module whose building takes `building`
    seconds is there by `end`."""
    return wanted if end is None else min(wanted, end - building)


def _share(left: float, searches: int, useful: float) -> float:
    """The seconds of the next of so many searches, of all that are `left`, where these are too few
    for each to measure something: `useful` ones for the first searches, as long as time remains in
    which the model chooses the other kernels."""
    return useful if left - CHOICE * (searches - 1) >= useful else 0.0


def _port(p: ModelPort) -> dict[str, Any]:
    return {"name": p.name, "shape": list(p.shape), "dtype": p.dtype}


# --- deciding -------------------------------------------------------------------------------


def _decide_all(run: _Run, matches: Sequence[ChainMatch], before: int = 0) -> dict[str, Decision]:
    """One decision for each distinct chain, of which so many were decided `before`. Those that
    weigh most, in all their places, are decided first, so that what is left without time is what
    matters least."""
    found = sorted(
        places(matches).values(), key=lambda same: -len(same) * weight(same[0].chain, run.device)
    )
    distinct = {same[-1].chain.key: same[-1].chain for same in found}
    alone = [len(unfused_cut(chain)) for chain in distinct.values()]
    searches = [1 + n if n > 1 else 1 for n in alone]
    saves = {same[-1].chain.key: same[-1].saved / run.device.bandwidth for same in found}
    run.share = run.options.timeout / max(1, sum(searches))
    run.begun, run.planned = time.monotonic(), sum(searches)
    decisions = {}
    for at, (key, chain) in enumerate(distinct.items()):
        run.place = ChainPlace(before + at + 1, before + len(distinct), chain.name)
        run.searches = sum(searches[at:])
        together = not run.short or saves[key] >= SAVES * weight(chain, run.device)
        if not together:
            run.searches = sum(alone[at:])
        decisions[key] = decide(
            chain, run.device, run.tune, run.predict, partial(run.compare, chain), together
        )
        for words in _decided(run.place, decisions[key]):
            run.listener(Note(words))
    return decisions


def _rival(
    run: _Run, loaded: Loaded, parted: Partition, price: Price, decisions: dict[str, Decision]
) -> Partition:
    """The fastest of a model's covers that are predicted to be about as fast as each other.

    Each of the others has one chain that crosses those of the first, and is tuned as long as there
    is time for searches, where the device is at hand. Its decisions are added to `decisions`. It is
    taken where its kernels were measured to be faster in sum by more than noise.
    """
    preferred: frozenset[str] = frozenset()
    for key in parted.close if run.measured else ():
        other = _parted(loaded, run.device, price, preferred | {key})
        new = [m for m in other.matches if m.chain.key not in decisions]
        if run.deadline - time.monotonic() < run.useful * len(places(new)):
            break
        decisions |= _decide_all(run, new, len(decisions))
        before, after = _seconds(parted, decisions), _seconds(other, decisions)
        faster = after < MARGIN * before
        name = next((m.chain.name for m in other.matches if m.chain.key == key), key)
        words = (
            f"kernels with chain '{name}' take {after * 1e6:.1f} us, others {before * 1e6:.1f} us"
        )
        run.listener(Note(f"{words}: the {'first' if faster else 'others'} are kept"))
        if faster:
            parted, preferred = other, preferred | {key}
    return parted


def _seconds(parted: Partition, decisions: Mapping[str, Decision]) -> float:
    """The sum of the times of a model's kernels; infinity where a chain has none."""
    kept = [decisions[m.chain.key].kept for m in parted.matches]
    return sum(cover.seconds if cover is not None else math.inf for cover in kept)


def _as_locked(
    run: _Run, locked: LockedBuild, matches: Sequence[ChainMatch]
) -> dict[str, Decision]:
    """The decision that a lock has for each distinct chain."""
    kernels = LockedKernels(locked.lock, locked.file, run.worker, run.options.seed, run.give_up)
    found = [same[0].chain for same in places(matches).values()]
    decisions = {}
    for number, chain in enumerate(found, 1):
        place = ChainPlace(number, len(found), chain.name)
        run.listener(Progress("rebuild", chain=place))
        decisions[chain.key] = kernels.decision(chain)
        for words in _decided(place, decisions[chain.key]):
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


def _box_pins(dynamic: LoadedBuckets | None) -> tuple[BoxPin, ...] | None:
    if dynamic is None:
        return None
    return tuple(BoxPin(low=dict(b.box.low), high=dict(b.box.high)) for b in dynamic.buckets)


def weight(chain: Chain, device: Device) -> float:
    """The seconds that a chain takes where nothing is in a cache: for what it computes, or for its
    inputs and outputs. A chain without a kernel takes many times as long."""
    moved = sum(nbytes(chain, t) for t in (*chain.inputs, *chain.outputs))
    return max(flops(chain) / device.throughput("float32"), moved / device.bandwidth)


def _uses(matches: Sequence[ChainMatch], decisions: Mapping[str, Decision]) -> Iterator[Use]:
    """The kernels that are used in each place of the model, and those that they were compared
    with."""
    for match in matches:
        key = match.chain.key
        for tuned in (t for cover in decisions[key].covers for t in cover.kernels):
            yield Use(key, match.chain.name, tuned.key)


# --- installing -----------------------------------------------------------------------------


def _replacements(
    matches: Sequence[ChainMatch], decisions: Mapping[str, Decision], backend: Backend
) -> tuple[list[Replacement], list[Any]]:
    """The kernels for every chain with a decision, and the binaries that they launch.

    Places whose kernels and physical shapes are equal share one function.
    """
    shared: dict[object, Function] = {}
    made = []
    for match in matches:
        decision = decisions.get(match.chain.key)
        if decision is None or decision.kept is None:
            continue
        kept = decision.kept
        installed = []
        for tuned, chain in zip(kept.kernels, pieces(match.chain, kept.cut), strict=True):
            physical = {
                n: match.shapes.get(n, chain.shape(n)) for n in (*chain.inputs, *chain.outputs)
            }
            key = (tuned.key, tuple(physical.values()))
            if key not in shared:
                name = f"{re.sub(r'[^A-Za-z0-9_]', '_', chain.name)}_{len(shared)}"
                names = Names(*names_of(tuned, chain))
                shared[key] = backend.function(
                    kept_kernel(tuned), chain, names, f"chain_{name}", physical
                )
            made_once = shared[key]
            packed = backend.packed(made_once, chain, match.constants)
            packed = {name: aligned(array) for name, array in packed.items()}  # one copy alone
            installed.append(
                Installed(made_once.name, chain, made_once.primfunc, packed, made_once.counters)
            )
        made.append(Replacement(match, tuple(installed)))
    return made, [f.binary for f in shared.values() if f.binary is not None]


# --- telling --------------------------------------------------------------------------------


def _found(matches: Sequence[ChainMatch], distinct: int, products: Sequence[ModelProduct]) -> str:
    """What the model was found to have, in a sentence."""
    alone = sum(p.chain is None for p in products)
    return (
        f"the model has {distinct} distinct chains in {len(matches)} places; {alone} of its "
        f"{len(products)} matrix products are in none"
    )


def _decided(place: ChainPlace, decision: Decision) -> Iterator[str]:
    """What was chosen for a chain, and which candidates of its kernels were left out and why."""
    count = len(decision.kernels)
    made = f"{count} kernel{'s' if count != 1 else ''}" if count else "no kernel"
    yield f"chain {place.number} of {place.of}, '{place.name}': {made}: {_reason(decision)}"
    for tuned in decision.kernels:
        tiles = " ".join(f"{axis}={size}" for axis, size in tuned.tiles.items())
        timed = "measured" if tuned.measured is not None else "predicted"
        reasons = sorted(tuned.failed.items(), key=lambda pair: -pair[1])[:_REASONS]
        left_out = "; ".join(f"{number} x {why}" for why, number in reasons)
        yield (
            f"  {tuned.expression} with {tiles}: {tuned.seconds * 1e6:.1f} us {timed}, "
            f"{tuned.trials} candidates tried" + (f"; left out: {left_out}" if left_out else "")
        )


# --- reporting ------------------------------------------------------------------------------


def _report(
    device: Device,
    options: TuneOptions,
    matches: Sequence[ChainMatch],
    products: Sequence[ModelProduct],
    decisions: Mapping[str, Decision],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    found = places(matches)
    keys = list(found)
    fused_at = {
        i for i, match in enumerate(matches) if _fused(match.chain, decisions[match.chain.key])
    }
    return {
        "device": device.name,
        "arch": device.arch,
        "units": device.units,
        "seed": options.seed,
        "times": _times(decisions),
        "chains": [_chain(found[k], decisions[k], device) for k in keys],
        "products": [_product(p, matches, keys, fused_at, device) for p in products],
        "seconds": {k: round(v, 3) for k, v in seconds.items()},
        "versions": {n: version(n) for n in ("mcfuser", "apache-tvm", "onnx", "numpy")},
    }


def _outline(loaded: Loaded, parted: Partition, keys: Sequence[str]) -> dict[str, Any]:
    """The order in which a model's chains and its other operators run; `more` steps are left out.
    Of a model with ranges of extents it is that of its largest bucket."""
    steps = outline(loaded.module, parted, keys)
    return {"steps": [s.to_json() for s in steps[:MOST]], "more": max(0, len(steps) - MOST)}


def _precision(loaded: Loaded, backend: Backend) -> dict[str, Any] | None:
    """How a model was narrowed, as the report has it; None where its own types stand."""
    if loaded.narrowing is None:
        return None
    return {**asdict(loaded.narrowing), "note": SLOWER if backend.on_host else None}


def _products(parted: Sequence[Partition]) -> list[ModelProduct]:
    """The products of several modules, whose chains are counted through."""
    made, before = [], 0
    for part in parted:
        for p in part.products:
            made.append(p if p.chain is None else replace(p, chain=p.chain + before))
        before += len(part.matches)
    return made


def _times(decisions: Mapping[str, Decision]) -> str:
    """Whether the kernels' times were measured, for the report."""
    known = [t.measured is not None for d in decisions.values() for t in d.kernels]
    if not known:
        return "of no kernel: all is left to TVM"
    if all(known):
        return "measured"
    return "measured in part, the others predicted" if any(known) else "predicted, not measured"


def _fused(chain: Chain, decision: Decision) -> bool:
    """Whether the chain runs in fewer kernels than its unfused cut has pieces."""
    return 0 < len(decision.kernels) < len(unfused_cut(chain))


def _chain(places: Sequence[ChainMatch], decision: Decision, device: Device) -> dict[str, Any]:
    chain = places[0].chain
    return {
        "name": chain.name,
        "key": chain.key,
        "places": [match.chain.name for match in places],
        "extents": {a.name: chain.size(a.name) for a in chain.axes},
        "operators": [str(o) for o in chain.operators],
        "fused": _fused(chain, decision),
        "cut": list(decision.kept.cut) if decision.kept is not None else [],
        "reason": _reason(decision),
        "saved_bytes": places[0].saved,
        "fused_seconds": decision.fused_seconds,
        "unfused_seconds": decision.unfused_seconds,
        "sure": decision.sure,
        "ratio": list(decision.ratio) if decision.ratio is not None else None,
        "conditions": dict(decision.conditions),
        "candidate": _kernel(decision.fused, device) if decision.fused is not None else None,
        "kernels": [_kernel(t, device) for t in decision.kernels],
    }


def _reason(decision: Decision) -> str:
    """Why these kernels were chosen, and whether that was without a measurement. Where they were
    timed in rounds with others (`ratio`), it was not."""
    unmeasured = any(t.measured is None for t in decision.kernels) and decision.ratio is None
    if not unmeasured or "predicted, not measured" in decision.reason:
        return decision.reason
    return f"{decision.reason}, predicted, not measured"


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
