"""Decides which kernels compute the chains of a model, within the time that tuning has."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial

from mcfuser.backends import backend_of
from mcfuser.build import DecidedModel
from mcfuser.building import ModuleToBuild
from mcfuser.chain import TF32, Chain, flops, nbytes
from mcfuser.device import Device
from mcfuser.errors import InputError
from mcfuser.graph.load import Loaded
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.price import Price
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.measure.request import COMPILED
from mcfuser.measure.rounds import MARGIN, Interleaved
from mcfuser.measure.worker import Worker
from mcfuser.model.least import dtypes
from mcfuser.tune.cover import Cuts, Decision, decide, likely, most_pieces
from mcfuser.tune.expected import expected
from mcfuser.tune.progress import ChainPlace, Listener, Note, Progress
from mcfuser.tune.tuned import Cache, Tuned, TuneOptions
from mcfuser.tune.tuner import begin_ahead, compare, tune
from mcfuser.whole import WholeModules

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
AHEAD = 2
"""Chains of which kernels are built at a time where the model chooses them, at least; as many as
there are builders, where these are more: a kernel is built in 1 to 3 s, and candidates are listed
in 0.2 (an H200's host of 16 cores)."""
NEAR = 1.1
"""Covers whose kernels' times in sum differ by less than this factor are timed as whole modules."""
STARTED = 10.0
"""Seconds in which two modules are started and timed in turns."""


@dataclass
class ModelTuning:
    """The tuning of one model while it goes on."""

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
    part: float = 1.0
    """What the chain that is searched for weighs of all that are still to come, for each of its
    searches."""
    give_up: float = math.inf
    """When the model chooses no more kernels (time.monotonic)."""
    share: float = 60.0
    """Seconds of one search, if all searches took the same time: what a kept kernel is judged
    by."""
    hurried: bool = False
    """Time was short for a chain, so the model chooses for those after it, too, which weigh less:
    what time is left is for the kernels that take longest."""
    going_on: bool = False
    """Every chain has its kernels, and searches for better ones go on (mcfuser.resume)."""
    module: ModuleToBuild | None = None
    """The module that must be there at some time, if there is such a time."""
    compiled: list[float] = field(default_factory=list)
    """Seconds of a core that the kernels of chains took to compile, as far as that is known."""

    @property
    def measured(self) -> bool:
        """The device is at hand, so candidates can be measured."""
        return self.worker.refused(self.deadline) is None

    def tune(self, chain: Chain) -> Tuned:
        """Tunes within a share of the time that is left for the searches still to come: half of it
        is shared equally and half by what their chains weigh (`part`). Where time is `short`, there
        is none for this search."""
        now = time.monotonic()
        left = max(0.0, self.deadline - now) if not self.short else 0.0
        share = left * (self.part + 1 / max(1, self.searches)) / 2
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
    def chooses(self) -> bool:
        """The model chooses: the device is not at hand, or no time is left to measure.

        Where time is short it chooses, too: the searches that there is time for are made after all
        choices, for the kernels that take longest (mcfuser.resume).
        """
        return not self.measured or time.monotonic() >= self.deadline or self.short

    @property
    def short(self) -> bool:
        """Whether the searches still to come have too little time for each to measure something,
        or those of a chain before had (`hurried`); those that go on do not, as there are no more
        than have time. Where the device is not at hand they measure nothing, and share what time
        there is."""
        if self.going_on or not self.measured:
            return False
        return self.hurried or self.deadline - time.monotonic() < self.useful * self.searches

    @property
    def ahead(self) -> int:
        """The chains of which kernels are built at a time where the model chooses them."""
        return max(AHEAD, self.worker.builder.workers)

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

    def learn(self, kernels: Sequence[Tuned]) -> None:
        """Expects of building what the compiler took for the kernels of chains that are known by
        now, of which these are one's, and leaves tuning the time that this is less."""
        seconds = (t.conditions.get(COMPILED) for t in kernels)
        known = [s for s in seconds if s is not None]
        if self.module is None or not known:
            return
        self.compiled.append(sum(known) / len(known) * len(kernels))
        building = self.module.seconds(self.compiled)
        deadline = self.module.tuned_by(building)
        self.give_up += deadline - self.deadline
        self.deadline, self.building = deadline, building

    def predict(self, chain: Chain) -> float:
        """The seconds that the model predicts for a chain's best candidate; infinity where no time
        is left to choose by it."""
        if time.monotonic() >= self.give_up:
            return math.inf
        backend = self.worker.backend
        return expected(chain, self.device, self.options, backend, not self.chooses)

    def begin_ahead(self, chain: Chain, cuts: Cuts) -> None:
        """Begins to build the kernels that the model will choose for a chain, where it does: then
        nothing is timed meanwhile."""
        for piece in likely(chain, cuts) if self.chooses else ():
            if time.monotonic() < self.give_up:
                begin_ahead(piece, self.device, self.cache, self.options, self.worker)

    def compare(
        self, chain: Chain, programs: Sequence[Sequence[tuple[Tuned, Chain]]]
    ) -> Interleaved:
        """Times covers of a chain. The last one, with the most kernels, is the baseline."""
        last = len(programs) - 1
        return compare(self.worker, chain, programs, self.options.seed, self.deadline, last)


def partition_for(
    loaded: Loaded,
    device: Device,
    price: Price | None = None,
    preferred: AbstractSet[str] = frozenset(),
) -> Partition:
    """The chains of a model, chosen by a `price`, or by a roofline where there is none."""
    peak, backend = device.throughput("float32"), backend_of(device)
    rounds = backend.tf32(device)
    asked = loaded.narrowing is not None and loaded.narrowing.dtype == TF32
    return partition(
        loaded.module,
        peak,
        device.bandwidth,
        price,
        preferred,
        loaded.integers,
        backend.channels_last(device),
        backend.on_host,
        rounds,
        TF32 if rounds and asked else "float32",
    )


def decide_all(
    run: ModelTuning, matches: Sequence[ChainMatch], before: int = 0
) -> dict[str, Decision]:
    """One decision for each distinct chain, of which so many were decided `before`. Those that
    weigh most, in all their places, are decided first, so that what is left without time is what
    matters least."""
    weighed = [
        (len(same) * weight(same[0].chain, run.device), same) for same in places(matches).values()
    ]
    weighed.sort(key=lambda pair: -pair[0])
    weights, found = [w for w, _ in weighed], [same for _, same in weighed]
    distinct = {same[-1].chain.key: same[-1].chain for same in found}
    alone = [len(most_pieces(chain, run.device)) for chain in distinct.values()]
    searches = [1 + n if n > 1 else 1 for n in alone]
    saved = {same[-1].chain.key: same[-1].saved / run.device.bandwidth for same in found}
    worth = {key: saved[key] >= SAVES * weight(c, run.device) for key, c in distinct.items()}
    run.share = run.options.timeout / max(1, sum(searches))
    run.begun, run.planned = time.monotonic(), sum(searches)
    decisions, chains = {}, list(distinct.values())
    run.hurried = False
    for at, (key, chain) in enumerate(distinct.items()):
        run.place = ChainPlace(before + at + 1, before + len(distinct), chain.name)
        run.searches = sum(searches[at:])
        run.hurried = short = run.short
        cuts = _cuts(short, worth[key])
        if cuts == "unfused":
            run.searches = sum(alone[at:])
        pieces = searches[at] if cuts != "unfused" else alone[at]
        run.part = weights[at] / sum(weights[at:]) / pieces
        for each in chains[at : at + run.ahead]:
            run.begin_ahead(each, _cuts(short, worth[each.key]))
        decisions[key] = decide(
            chain, run.device, run.tune, run.predict, partial(run.compare, chain), cuts
        )
        run.learn(decisions[key].kernels)
        for words in decision_words(run.place, decisions[key]):
            run.listener(Note(words))
    return decisions


def rival(
    run: ModelTuning,
    loaded: Loaded,
    parted: Partition,
    price: Price,
    decisions: dict[str, Decision],
    whole: WholeModules | None = None,
) -> Partition:
    """The fastest of a model's covers that are predicted to be about as fast as each other.

    Each of the others has one chain that crosses those of the first, and is tuned as long as there
    is time for searches, where the device is at hand and all of the first one's kernels were
    measured. Its decisions are added to `decisions`. Where the kernels' times in sum are about the
    same, and there is time to build both modules, these are timed (`whole`), as what overlaps and
    what stays in a cache is in no sum. The other cover is taken where it was measured to be faster
    by more than noise.
    """
    preferred: frozenset[str] = frozenset()
    known = all(t.measured is not None for d in decisions.values() for t in d.kernels)
    for key in parted.close if run.measured and known else ():
        other = partition_for(loaded, run.device, price, preferred | {key})
        new = [m for m in other.matches if m.chain.key not in decisions]
        if run.deadline - time.monotonic() < run.useful * len(places(new)):
            break
        decisions |= decide_all(run, new, len(decisions))
        covers = [
            DecidedModel(run.device, run.worker.backend, loaded, each, decisions, None)
            for each in (other, parted)
        ]
        (after, before), what = _seconds(run, covers, whole)
        faster = after < MARGIN * before
        name = next((m.chain.name for m in other.matches if m.priced == key), key)
        run.listener(
            Note(
                f"a cover with chain '{name}' takes {after * 1e6:.1f} us, one without "
                f"{before * 1e6:.1f} ({what}): the {'first' if faster else 'second'} is kept"
            )
        )
        if faster:
            parted, preferred = other, preferred | {key}
    return parted


def _seconds(
    run: ModelTuning, covers: Sequence[DecidedModel], whole: WholeModules | None
) -> tuple[tuple[float, ...], str]:
    """The times of a model with several covers, and what they are: whole modules', or else those of
    kernels in sum."""
    sums = tuple(_sum(decided) for decided in covers), "the sum of its kernels"
    left = run.deadline - time.monotonic()
    far = max(sums[0]) > NEAR * min(sums[0])
    if whole is None or far or left < STARTED + len(covers) * run.building:
        return sums
    run.listener(Progress("build", left=run.building))
    try:
        return whole.seconds(covers, run.deadline), "the whole module"
    except InputError as error:
        run.listener(Note(f"two covers were not timed as whole modules: {error}"))
        return sums


def _sum(decided: DecidedModel) -> float:
    """The sum of the times of a model's kernels; infinity where a chain has none."""
    kept = [decided.decisions[m.chain.key].kept for m in decided.parted.matches]
    return sum(cover.seconds if cover is not None else math.inf for cover in kept)


def _cuts(short: bool, worth: bool) -> Cuts:
    """The cuts of a chain that may be tuned. Where time is short, the whole chain is among them if
    one kernel may save enough time, and no cut that the model would have to be asked about."""
    if not short:
        return "all"
    return "ends" if worth else "unfused"


def weight(chain: Chain, device: Device) -> float:
    """The seconds that a chain takes where nothing is in a cache: for what it computes, or for its
    inputs and outputs. A chain without a kernel takes many times as long."""
    moved = sum(nbytes(chain, t) for t in (*chain.inputs, *chain.outputs))
    peak = max(device.throughput(d) for d in dtypes(chain))
    return max(flops(chain) / peak, moved / device.bandwidth)


def decision_words(place: ChainPlace, decision: Decision) -> Iterator[str]:
    """What was chosen for a chain, and which candidates of its kernels were left out and why."""
    count = len(decision.kernels)
    made = f"{count} kernel{'s' if count != 1 else ''}" if count else "no kernel"
    yield f"chain {place.number} of {place.of}, '{place.name}': {made}: {decision.words}"
    for tuned in decision.kernels:
        tiles = " ".join(f"{axis}={size}" for axis, size in tuned.tiles.items())
        timed = "measured" if tuned.measured is not None else "predicted"
        reasons = sorted(tuned.failed.items(), key=lambda pair: -pair[1])[:_REASONS]
        left_out = "; ".join(f"{number} x {why}" for why, number in reasons)
        yield (
            f"  {tuned.expression} with {tiles}: {tuned.seconds * 1e6:.1f} us {timed}, "
            f"{tuned.trials} candidates tried" + (f"; left out: {left_out}" if left_out else "")
        )
