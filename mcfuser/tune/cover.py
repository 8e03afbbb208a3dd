"""Which kernels compute a chain: one, as many as it has products, or some number between.

The whole chain is tuned first. Its finest cut is tuned unless its pieces are known to take longer:
no schedule of them could be as fast, or those tuned so far already are not. Of the cuts between,
the one that the model expects most of is tuned where it should beat what has been measured. Then
all are timed in turns, and fewer kernels are kept where they are faster than the most by more than
noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcfuser.algebra.quotient import guarded
from mcfuser.chain import Chain, Cut, cut, intermediate_cuts, unfused_cut
from mcfuser.device import Device
from mcfuser.measure.rounds import CONFIDENT, MARGIN, Interleaved, certainty, interval
from mcfuser.model.least import least
from mcfuser.tune.tuned import NoCandidate, Tuned

SURE = 1.1
"""Pieces that already take this multiple of the fused time are slower, whatever is left."""
PIECES = 5
"""Chains of more pieces than this have too many cuts to ask the model about each."""

TunePiece = Callable[[Chain], Tuned]
"""Tunes a chain; raises NoCandidate."""
PredictSeconds = Callable[[Chain], float]
"""The seconds that the model expects of a chain's best candidate."""
CompareCovers = Callable[[Sequence[Sequence[tuple[Tuned, Chain]]]], Interleaved]
"""Times programs in turns, until it is sure whether one is faster than the last of them."""


@dataclass(frozen=True)
class Cover:
    """A cut of a chain with a kernel for each piece."""

    cut: Cut
    chains: tuple[Chain, ...]
    kernels: tuple[Tuned, ...]

    @property
    def seconds(self) -> float:
        """By the searches of the pieces, each alone."""
        return sum(t.seconds for t in self.kernels)

    @property
    def pairs(self) -> list[tuple[Tuned, Chain]]:
        return list(zip(self.kernels, self.chains, strict=True))


@dataclass(frozen=True)
class Decision:
    """What is installed for every chain with one key: `kept`, or nothing (TVM's own).

    `most` is the chain's finest cut. `ways` are those that were tuned, fewest kernels first;
    `times` their seconds, measured in turns or predicted, where there were several. Where they were
    measured, `ratio` bounds how many times as long as the kept way the next best one takes, and
    `sure` is how surely that way was right to be kept, from 0 to 1, under `conditions`.
    """

    most: Cut
    kept: Cover | None
    ways: tuple[Cover, ...]
    times: tuple[float, ...]
    reason: str
    sure: float | None = None
    ratio: tuple[float, float] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[Tuned, ...]:
        return self.kept.kernels if self.kept is not None else ()

    @property
    def fused(self) -> Tuned | None:
        """The kernel of the whole chain."""
        return next((w.kernels[0] for w in self.ways if len(w.cut) == 1), None)

    @property
    def fused_seconds(self) -> float | None:
        """Those of the best way in which pieces share a kernel, or of the only piece; None where
        they are not known, a single way's by its search."""
        return self._least(lambda w: w.cut != self.most or len(w.cut) == 1)

    @property
    def unfused_seconds(self) -> float | None:
        """Those of the way with a kernel for every piece, where there are several."""
        return self._least(lambda w: w.cut == self.most and len(w.cut) > 1)

    def _least(self, wanted: Callable[[Cover], bool]) -> float | None:
        times = self.times or tuple(w.seconds for w in self.ways)
        known = [t for w, t in zip(self.ways, times, strict=True) if wanted(w)]
        return min((t for t in known if math.isfinite(t)), default=None)


def pieces(chain: Chain, where: Cut) -> tuple[Chain, ...]:
    """The chains of a cut. What a piece divides by was a sum of the whole chain, whose empty rows
    are nothing there, too (algebra.quotient)."""
    return (chain,) if len(where) == 1 else cut(guarded(chain), where)


def decide(
    chain: Chain, device: Device, search: TunePiece, foresee: PredictSeconds, compare: CompareCovers
) -> Decision:
    """The kernels for a chain."""
    most, reasons = unfused_cut(chain), list[str]()
    fused = _way(chain, (len(chain.operators),), search, math.inf, reasons)
    if len(most) == 1:
        reason = f"left to TVM: {reasons[0]}" if fused is None else "one product with its epilogue"
        return Decision(most, fused, (fused,) if fused is not None else (), (), reason)
    unfused, limit = None, math.inf
    if fused is not None and fused.seconds <= (bound := least(pieces(chain, most), device)):
        reasons.append(f"unfused takes {bound * 1e6:.1f} us at least")
    else:
        limit = fused.seconds * SURE if fused is not None else math.inf
        unfused = _way(chain, most, search, limit, reasons)
    ways = [w for w in (fused, unfused) if w is not None]
    if ways and (favourite := _favourite(chain, ways, foresee)) is not None:
        limit = min(w.seconds for w in ways) * SURE
        middle = _way(chain, favourite, search, limit, reasons)
        ways += [middle] if middle is not None else []
    ways.sort(key=lambda w: len(w.cut))
    if not ways:
        return Decision(most, None, (), (), f"left to TVM: {'; unfused, '.join(reasons)}")
    if len(ways) == 1:
        return Decision(most, ways[0], tuple(ways), (), "; ".join(reasons))
    return _fastest(most, tuple(ways), compare([w.pairs for w in ways]))


def _way(
    chain: Chain, where: Cut, search: TunePiece, limit: float, reasons: list[str]
) -> Cover | None:
    """The tuned pieces of a cut; None, with a reason, where one has no kernel or where those tuned
    so far take longer than `limit` seconds."""
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


def _favourite(chain: Chain, ways: Sequence[Cover], foresee: PredictSeconds) -> Cut | None:
    """The cut between that the model expects to be fastest, where it expects it to beat what was
    tuned; the model may be off by as much as it was for that."""
    if not 2 < len(unfused_cut(chain)) <= PIECES:
        return None
    known: dict[str, float] = {}

    def expected(chains: Sequence[Chain]) -> float:
        for piece in chains:
            if piece.key not in known:
                known[piece.key] = foresee(piece)
        return sum(known[piece.key] for piece in chains)

    best = min(ways, key=lambda w: w.seconds)
    found = min(intermediate_cuts(chain), key=lambda where: expected(pieces(chain, where)))
    off = best.seconds / max(expected(best.chains), 1e-30)
    return found if off * expected(pieces(chain, found)) < best.seconds else None


def _fastest(most: Cut, ways: tuple[Cover, ...], timed: Interleaved) -> Decision:
    """The fastest of those that are surely faster than the most kernels by more than noise, or else
    these; `ways` have the fewest kernels first."""
    times = tuple(t if t > 0 else math.inf for t in timed.seconds)
    numbers, last = range(len(ways)), len(ways) - 1
    better = [i for i in numbers[:-1] if times[i] <= MARGIN * times[last] and times[i] < math.inf]
    sure = [i for i in numbers[:-1] if _surely(timed, i, last)] if timed.rounds else better
    kept = min(sure, key=lambda i: times[i], default=last)
    if not times[kept] < math.inf:
        return Decision(
            most, ways[kept], ways, times, "none of them could be timed beside the others"
        )
    other = min((i for i in numbers if i != kept), key=lambda i: times[i])
    if not times[other] < math.inf:
        reason = f"{_named(ways[other])} could not be timed beside it"
        return Decision(most, ways[kept], ways, times, reason)
    found = timed.ratios(other, kept)
    ratio = statistics.median(found) if found else times[other] / times[kept]
    reason = _reason(ways[kept], ways[other], ratio)
    measured = all(t.measured is not None for w in ways for t in w.kernels)
    reason += ", measured" if measured else ", predicted, not measured"
    if not found:
        return Decision(most, ways[kept], ways, times, reason)
    low, high, count = *interval(found), len(timed.rounds[kept])
    if kept == last:
        right = certainty(found, MARGIN)
    else:
        right = certainty(timed.ratios(last, kept), 1 / MARGIN)
    if better and kept == last:
        reason = (
            f"{len(ways[last].cut)} kernels are kept: not told apart from noise, "
            f"{_named(ways[other])} takes {low:.2f} to {high:.2f} times as long"
        )
        reason += f" in {count} rounds"
    else:
        reason += f" in {count} rounds, between {low:.2f}x and {high:.2f}x"
    return Decision(
        most, ways[kept], ways, times, reason, round(right, 4), (low, high), timed.conditions
    )


def _surely(timed: Interleaved, fewer: int, most: int) -> bool:
    """Fewer kernels are faster by more than noise, as far as rounds tell."""
    found = timed.ratios(most, fewer)
    if not found:  # one of them failed
        return timed.seconds[fewer] < math.inf and not timed.seconds[most] < math.inf
    return certainty(found, 1 / MARGIN) >= CONFIDENT


def _reason(kept: Cover, other: Cover, ratio: float) -> str:
    if len(kept.cut) > 1:
        return f"{len(kept.cut)} kernels are kept: {_named(other)} takes {ratio:.2f}x their time"
    return f"{ratio:.2f}x over {_named(other)}"


def _named(way: Cover) -> str:
    return "fused" if len(way.cut) == 1 else f"unfused in {len(way.cut)} kernels"
