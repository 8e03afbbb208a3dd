"""The cover of a chain: how many kernels compute it, and which operators each of them has.

The whole chain is tuned first, as one kernel, unless the model expects far more of its time than of
the unfused cut's. The unfused cut, with a kernel for each product and
its epilogue, is tuned unless its pieces are known to take longer: either their lower bound is above
the fused time, or the pieces tuned so far already take longer. Of the cuts between these two, the
one that is predicted best is tuned where the model expects it to beat what was measured. Then all
covers are timed, interleaved, and one with fewer kernels is kept only where it is faster than the
unfused one by more than noise.

A chain without products is one kernel, unless its rows are too few for a device's multiprocessors.
Then each reduction may have a kernel of its own, which can be split over all of them, as no kernel
can be that goes on to compute with what is reduced. Where time is short, only that cut is tuned
which the model expects to take the least time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mcfuser.algebra.quotient import guarded
from mcfuser.chain import (
    Chain,
    Cut,
    cut,
    intermediate_cuts,
    products,
    reduction_cut,
    shared_axes,
    unfused_cut,
)
from mcfuser.device import Device
from mcfuser.measure.rounds import CONFIDENT, MARGIN, Interleaved, certainty, interval
from mcfuser.model.least import least
from mcfuser.tune.tuned import NoCandidate, Tuned

SURE = 1.1
"""A cover is given up once some of its pieces take this multiple of the best time so far."""
FAR = 3.0
"""A whole chain is not tuned where it is predicted to take this multiple of the unfused cut's
time."""
AXES = 8
"""A chain of several pieces and more axes is not tuned whole: nine loops have 40,000 orders, and to
look at them takes a minute."""
ROW_AXES = 4
"""Several operators without a product that have more axes are not looked at as one kernel where
they may be several: a norm of groups that is stored by channels has five or six, and 700 plans,
which take three seconds; as one kernel it is expected to take 0.7 to 1.3 times as long as in
two."""
PIECES = 5
"""Chains of more pieces than this have too many cuts to ask the model about each."""
FEW = 3
"""Pieces whose cuts the model is asked about even where time is short: there are two between the
ends, and the better one is often by far the best of all, as that of a gated block is which leaves
its last product alone."""

Cuts = Literal["all", "ends", "unfused"]
"""Which cuts of a chain may be tuned: all, the whole chain and the unfused cut, or this alone. Of
few pieces (FEW), `ends` are all cuts, too."""
TunePiece = Callable[[Chain], Tuned]
"""Tunes a chain; raises NoCandidate."""
PredictSeconds = Callable[[Chain], float]
"""The seconds that the model predicts for a chain's best candidate; infinity if it has none."""
CompareCovers = Callable[[Sequence[Sequence[tuple[Tuned, Chain]]]], Interleaved]
"""Times covers, given as their kernels, until it is sure whether one is faster than the last."""


@dataclass(frozen=True)
class Cover:
    """A cut of a chain, its pieces as chains, and a tuned kernel for each piece."""

    cut: Cut
    chains: tuple[Chain, ...]
    kernels: tuple[Tuned, ...]

    @property
    def seconds(self) -> float:
        """The sum of the kernels' times, each as its own search found it."""
        return sum(t.seconds for t in self.kernels)

    @property
    def pairs(self) -> list[tuple[Tuned, Chain]]:
        """Each kernel with the piece that it computes, in the order in which they run."""
        return list(zip(self.kernels, self.chains, strict=True))


@dataclass(frozen=True)
class Decision:
    """The cover that is installed for every chain with one key.

    `kept` is None where the chain is left to TVM. `unfused` is the chain's `most_pieces`. `covers`
    are those that were tuned, fewest kernels first. Where there are several, `times` are their
    seconds, measured together or predicted. Where they were measured, `ratio` are the bounds of the
    next best cover's time as a multiple of the kept one's, `sure` is the certainty, from 0 to 1,
    that the right cover was kept, and `conditions` describe the device meanwhile. `reason` is for
    the user.
    """

    unfused: Cut
    kept: Cover | None
    covers: tuple[Cover, ...]
    times: tuple[float, ...]
    reason: str
    sure: float | None = None
    ratio: tuple[float, float] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Why these kernels were chosen, and whether that was without a measurement. Where they
        were timed in rounds with others (`ratio`), it was not."""
        unmeasured = any(t.measured is None for t in self.kernels) and self.ratio is None
        if not unmeasured or "predicted, not measured" in self.reason:
            return self.reason
        return f"{self.reason}, predicted, not measured"

    @property
    def kernels(self) -> tuple[Tuned, ...]:
        """The kernels that are installed; none where the chain is left to TVM."""
        return self.kept.kernels if self.kept is not None else ()

    @property
    def fused(self) -> Tuned | None:
        """The kernel of the whole chain, None where it has none."""
        return next((c.kernels[0] for c in self.covers if len(c.cut) == 1), None)

    @property
    def fused_seconds(self) -> float | None:
        """The time of the best cover in which pieces share a kernel, or of the only piece.

        It is the search's where there is one cover alone, and None where it is not known.
        """
        return self._least(lambda c: c.cut != self.unfused or len(c.cut) == 1)

    @property
    def unfused_seconds(self) -> float | None:
        """The time of the unfused cover of a chain with several pieces, None if not known."""
        return self._least(lambda c: c.cut == self.unfused and len(c.cut) > 1)

    def _least(self, wanted: Callable[[Cover], bool]) -> float | None:
        times = self.times or tuple(c.seconds for c in self.covers)
        known = [t for c, t in zip(self.covers, times, strict=True) if wanted(c)]
        return min((t for t in known if math.isfinite(t)), default=None)


def pieces(chain: Chain, where: Cut) -> tuple[Chain, ...]:
    """The chains of a cut.

    A divisor that one piece computes and another one reads may be 0 where its sum is empty. The
    quotient is guarded first (algebra.quotient), so that the reading piece gives 0 there, as the
    whole chain does.
    """
    return (chain,) if len(where) == 1 else cut(guarded(chain), where)


def most_pieces(chain: Chain, device: Device) -> Cut:
    """The cut of a chain into the most kernels that can be faster than fewer.

    It is the unfused cut; of a chain without products the cut behind each reduction, if all its
    operators share fewer positions than the device has multiprocessors or cores.
    """
    shared = math.prod(chain.size(a) for a in shared_axes(chain))
    if products(chain) or shared >= device.units:
        return unfused_cut(chain)
    return reduction_cut(chain)


def likely(chain: Chain, cuts: Cuts) -> tuple[Chain, ...]:
    """The chains that `decide` is likely to tune: the whole one, unless it is known not to be, and
    the pieces of its unfused cut."""
    unfused_at = unfused_cut(chain)
    if len(unfused_at) == 1:
        return (chain,)
    whole = (chain,) if cuts != "unfused" and len(chain.axes) <= AXES else ()
    return (*whole, *pieces(chain, unfused_at))


def decide(
    chain: Chain,
    device: Device,
    search: TunePiece,
    predict: PredictSeconds,
    compare: CompareCovers,
    cuts: Cuts = "all",
) -> Decision:
    """Tunes the covers of a chain that may win, compares them, and chooses one. The whole chain is
    tuned in any case where a piece of the unfused cut has no kernel."""
    unfused_at, reasons = most_pieces(chain, device), list[str]()
    whole, predict = (len(chain.operators),), _once_each(predict)
    fused, unfused = None, None
    likeliest = _likeliest(chain, unfused_at, predict)
    if likeliest is not None and len(likeliest) > 1 and cuts != "all":
        made = _tuned_cover(chain, likeliest, search, math.inf, reasons)
        if made is not None:
            reason = f"no product, {len(likeliest)} kernels: predicted to be the fastest"
            return Decision(unfused_at, made, (made,), (), reason)
    alone = _alone(chain, unfused_at, likeliest)
    far = _far(chain, unfused_at, predict, cuts) if alone is None else None
    if far is not None:
        reasons.append(far)
        unfused = _tuned_cover(chain, unfused_at, search, math.inf, reasons)
    if unfused is None:
        fused = _tuned_cover(chain, whole, search, math.inf, reasons)
    if far is not None and fused is not None:
        return Decision(unfused_at, fused, (fused,), (), "; ".join(reasons[1:]))
    if alone is not None and (fused is not None or len(unfused_at) == 1):
        reason = f"left to TVM: {reasons[0]}" if fused is None else alone
        only = (fused,) if fused is not None else ()
        return Decision(unfused_at, fused, only, (), reason)
    if fused is not None and fused.seconds <= (bound := least(pieces(chain, unfused_at), device)):
        reasons.append(f"unfused takes {bound * 1e6:.1f} us at least")
    elif far is None:
        limit = fused.seconds * SURE if fused is not None else math.inf
        unfused = _tuned_cover(chain, unfused_at, search, limit, reasons)
    covers = [c for c in (fused, unfused) if c is not None]
    asked = covers and (cuts == "all" or (cuts == "ends" and len(unfused_at) <= FEW))
    between = _predicted_best(chain, device, unfused_at, covers, predict) if asked else None
    if between is not None:
        limit = min(c.seconds for c in covers) * SURE
        made = _tuned_cover(chain, between, search, limit, reasons)
        covers += [made] if made is not None else []
    covers.sort(key=lambda c: len(c.cut))
    if not covers:
        return Decision(unfused_at, None, (), (), f"left to TVM: {'; unfused, '.join(reasons)}")
    if len(covers) == 1:
        return Decision(unfused_at, covers[0], tuple(covers), (), "; ".join(reasons))
    return _fastest(unfused_at, tuple(covers), compare([c.pairs for c in covers]))


def _once_each(predict: PredictSeconds) -> PredictSeconds:
    """The same prediction, made once for each chain: it prices a whole space."""
    known: dict[str, float] = {}

    def predicted(chain: Chain) -> float:
        if chain.key not in known:
            known[chain.key] = predict(chain)
        return known[chain.key]

    return predicted


def _predicted(chains: Sequence[Chain], predict: PredictSeconds) -> float:
    """The seconds that the model predicts for chains one after the other."""
    return sum(map(predict, chains))


def _likeliest(chain: Chain, unfused_at: Cut, predict: PredictSeconds) -> Cut | None:
    """The cut of a chain without products that the model expects to take the least time, of equal
    ones that with the fewest kernels; None for other chains. The sums that a norm needs may share
    a kernel that is split over the whole device, as it cannot be with what is normalized."""
    if products(chain):
        return None
    whole: Cut = (len(chain.operators),)
    if len(unfused_at) == 1:
        return whole
    between = intermediate_cuts(unfused_at) if len(unfused_at) <= FEW else ()
    cuts = {**_looked_at(chain, (whole, *between)), unfused_at: pieces(chain, unfused_at)}
    seconds = {where: _predicted(chains, predict) for where, chains in cuts.items()}
    return min(seconds, key=lambda where: (seconds[where], len(where)))


def expected_in_pieces(chain: Chain, device: Device, predict: PredictSeconds) -> float:
    """The seconds that the model predicts for a chain in the kernels that are likely to compute it:
    one, but for a chain without products whose rows are few."""
    likeliest = _likeliest(chain, most_pieces(chain, device), predict)
    return _predicted(pieces(chain, likeliest), predict) if likeliest else predict(chain)


def _looked_at(chain: Chain, cuts: Iterable[Cut]) -> dict[Cut, tuple[Chain, ...]]:
    """The chains of those cuts of which no chain without products, of several operators, has too
    many axes."""
    every = {where: pieces(chain, where) for where in cuts}
    return {where: chains for where, chains in every.items() if not any(map(_is_wide, chains))}


def _is_wide(chain: Chain) -> bool:
    return not products(chain) and len(chain.operators) > 1 and len(chain.axes) > ROW_AXES


def _alone(chain: Chain, unfused_at: Cut, likeliest: Cut | None) -> str | None:
    """Why the whole chain alone is tuned: it is one piece, or has no product, and the model does
    not expect its pieces to take less time. None where pieces are tuned, too."""
    if products(chain):
        return "one product with its epilogue" if len(unfused_at) == 1 else None
    if len(unfused_at) == 1:
        return "no product, one kernel"
    if likeliest != (len(chain.operators),):
        return None
    return f"no product, one kernel: {len(unfused_at)} are not predicted to be faster"


def _far(chain: Chain, unfused_at: Cut, predict: PredictSeconds, cuts: Cuts) -> str | None:
    """Why the whole chain need not be tuned: it is not among the `cuts`, it has too many axes, or
    the model expects far more of its time than of the unfused cut's. None where it has to be."""
    if len(chain.axes) > AXES or _is_wide(chain):
        return f"its {len(chain.axes)} axes have too many orders to look at"
    if cuts == "unfused":
        return "no time was left to try fewer kernels"
    whole = predict(chain)
    if not math.isfinite(whole):
        return None
    apart = _predicted(pieces(chain, unfused_at), predict)
    if whole <= FAR * apart:
        return None
    return f"fused is predicted to take {whole / apart:.1f}x the time of {len(unfused_at)} kernels"


def _tuned_cover(
    chain: Chain, where: Cut, search: TunePiece, limit: float, reasons: list[str]
) -> Cover | None:
    """The cover of a cut, with every piece tuned.

    It is None, and a reason is added to `reasons`, where a piece has no kernel or where the pieces
    tuned so far take longer than `limit` seconds.
    """
    chains, kernels, spent = pieces(chain, where), list[Tuned](), 0.0
    for i, piece in enumerate(chains):
        try:
            kernels.append(search(piece))
        except NoCandidate as error:
            reasons.append(str(error))
            return None
        spent += kernels[-1].seconds
        if spent > limit and i + 1 < len(chains):
            alone = f"{i + 1} of them take{'s' if i == 0 else ''} {spent * 1e6:.1f} us alone"
            reasons.append(f"in {len(chains)} kernels, {alone}")
            return None
    return Cover(where, chains, tuple(kernels))


def _predicted_best(
    chain: Chain,
    device: Device,
    unfused_at: Cut,
    covers: Sequence[Cover],
    predict: PredictSeconds,
) -> Cut | None:
    """The intermediate cut with the least predicted time; None where it is not expected to win, or
    takes longer at least than the best of the tuned `covers`, and the model need not be asked.

    The model is taken to be wrong by the factor by which it was for the best of the tuned `covers`.
    """
    if not 2 < len(unfused_at) <= PIECES:
        return None

    tuned = min(covers, key=lambda c: c.seconds)
    predictions = {
        where: _predicted(chains, predict)
        for where, chains in _looked_at(chain, intermediate_cuts(unfused_at)).items()
        if least(chains, device) < tuned.seconds
    }
    if not predictions:
        return None
    best = min(predictions, key=predictions.__getitem__)
    error = tuned.seconds / max(_predicted(tuned.chains, predict), 1e-30)
    return best if error * predictions[best] < tuned.seconds else None


def _fastest(unfused_at: Cut, covers: tuple[Cover, ...], timed: Interleaved) -> Decision:
    """The decision between covers that were timed together, fewest kernels first.

    It is the fastest of those that are surely faster than the last one by more than noise; the
    last one, which has the most kernels, where there is none.
    """
    times = tuple(t if t > 0 else math.inf for t in timed.seconds)
    numbers, last = range(len(covers)), len(covers) - 1
    better = [i for i in numbers[:-1] if times[i] <= MARGIN * times[last] and times[i] < math.inf]
    sure = [i for i in numbers[:-1] if _surely(timed, i, last)] if timed.rounds else better
    kept = min(sure, key=lambda i: times[i], default=last)
    if not times[kept] < math.inf:
        reason = "none of them could be timed with the others"
        return Decision(unfused_at, covers[kept], covers, times, reason)
    other = min((i for i in numbers if i != kept), key=lambda i: times[i])
    if not times[other] < math.inf:
        reason = f"{_named(covers[other])} could not be timed with it"
        return Decision(unfused_at, covers[kept], covers, times, reason)
    ratios = timed.ratios(other, kept)
    ratio = statistics.median(ratios) if ratios else times[other] / times[kept]
    reason = _reason(covers[kept], covers[other], ratio)
    # what was timed in rounds was measured there, whichever of its kernels the model has chosen
    measured = ratios or all(t.measured is not None for c in covers for t in c.kernels)
    reason += ", measured" if measured else ", predicted, not measured"
    if not ratios:
        return Decision(unfused_at, covers[kept], covers, times, reason)
    low, high, count = *interval(ratios), len(timed.rounds[kept])
    if kept == last:
        right = certainty(ratios, MARGIN)
    else:
        right = certainty(timed.ratios(last, kept), 1 / MARGIN)
    if better and kept == last:
        reason = (
            f"{len(covers[last].cut)} kernels are kept: the gain cannot be told from noise, "
            f"{_named(covers[other])} takes {low:.2f} to {high:.2f} times as long"
        )
        reason += f" in {count} rounds"
    else:
        reason += f" in {count} rounds, between {low:.2f}x and {high:.2f}x"
    return Decision(
        unfused_at,
        covers[kept],
        covers,
        times,
        reason,
        round(right, 4),
        (low, high),
        timed.conditions,
    )


def _surely(timed: Interleaved, fewer: int, last: int) -> bool:
    """Whether the rounds show that a cover is faster than the last one by more than noise."""
    ratios = timed.ratios(last, fewer)
    if not ratios:  # one of them failed
        return timed.seconds[fewer] < math.inf and not timed.seconds[last] < math.inf
    return certainty(ratios, 1 / MARGIN) >= CONFIDENT


def _reason(kept: Cover, other: Cover, ratio: float) -> str:
    if len(kept.cut) > 1:
        return f"{len(kept.cut)} kernels are kept: {_named(other)} takes {ratio:.2f}x their time"
    return f"{ratio:.2f}x over {_named(other)}"


def _named(cover: Cover) -> str:
    return "fused" if len(cover.cut) == 1 else f"unfused in {len(cover.cut)} kernels"
