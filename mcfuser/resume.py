"""Searches that were cut short go on in the time that others left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mcfuser.decide import ModelTuning
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.tune.cover import Cover, Decision
from mcfuser.tune.progress import Note
from mcfuser.tune.tuned import Tuned


@dataclass(frozen=True)
class CutShort:
    """A kernel whose search was cut short: the `number` of its piece in the cover that is kept for
    the chain with this `key`, and the seconds that it takes in all places of the chain."""

    key: str
    number: int
    seconds: float


def resume(
    run: ModelTuning, matches: Sequence[ChainMatch], decisions: Mapping[str, Decision]
) -> dict[str, Decision]:
    """The decisions, with better kernels where a search that goes on finds some.

    Those of the kernels that take longest, in all their places, go on first, each for a share of
    the time that is left (ModelTuning.tune).
    """
    found, begun, pending = dict(decisions), run.share, cut_short(matches, decisions)
    run.going_on = True
    for at, each in enumerate(pending):
        left = run.deadline - time.monotonic()
        if left < run.useful or not run.measured:
            break
        kept = found[each.key].kept
        assert kept is not None
        run.place, run.searches = None, max(1, min(len(pending) - at, int(left / run.useful)))
        run.part = each.seconds / sum(e.seconds for e in pending[at : at + run.searches])
        run.share = begun + left / run.searches
        chain, before = kept.chains[each.number], kept.kernels[each.number]
        after = run.tune(chain)
        if (after.source, after.binary) != (before.source, before.binary):
            gained = f"{before.seconds * 1e6:.1f} us, {after.seconds * 1e6:.1f} now"
            run.listener(Note(f"the search for '{chain.name}' went on: it took {gained}"))
        found[each.key] = with_kernel(found[each.key], kept, each.number, after)
        if before.measured is None:
            run.learn([after])
    run.share, run.going_on = begun, False
    return found


def cut_short(matches: Sequence[ChainMatch], decisions: Mapping[str, Decision]) -> list[CutShort]:
    """The kernels whose searches had no more time, those that take longest first."""
    found = []
    for key, same in places(matches).items():
        for number, tuned in enumerate(decisions[key].kernels):
            if tuned.budget.ended == "time":
                found.append(CutShort(key, number, len(same) * tuned.seconds))
    return sorted(found, key=lambda each: -each.seconds)


def with_kernel(decision: Decision, kept: Cover, number: int, tuned: Tuned) -> Decision:
    """A decision whose kept cover has another kernel for a piece, and as much less time as this
    kernel takes less than the one before it."""
    before = kept.kernels[number]
    kernels = (*kept.kernels[:number], tuned, *kept.kernels[number + 1 :])
    cover = replace(kept, kernels=kernels)
    covers = tuple(cover if c is kept else c for c in decision.covers)
    less = max(0.0, before.seconds - tuned.seconds)
    times = tuple(
        max(0.0, t - less) if c is kept else t
        for c, t in zip(decision.covers, decision.times, strict=False)
    )
    return replace(decision, kept=cover, covers=covers, times=times)
