"""Which kept kernel serves a search, and which of two kernels stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mcfuser.chain import Chain
from mcfuser.measure.rounds import CONFIDENT, MARGIN, Interleaved, certainty
from mcfuser.tune.key import CacheKey, nearest
from mcfuser.tune.tuned import Cache, Tuned, TuneOptions

MakeLaunchable = Callable[[Tuned, Chain], object]
"""Makes a kept kernel ready to be called; raises KeyError, TypeError or ValueError where it cannot
be read."""


def recall(
    cache: Cache, key: CacheKey, chain: Chain, launchable: MakeLaunchable
) -> tuple[Tuned | None, str]:
    """The kept kernel of a key; or None, with the reason why there is none in one clause, empty
    where nothing was ever kept for the chain."""
    known = cache.get(key.digest)
    if known is None:
        changed = nearest(key, cache.alike(chain.key))
        return None, f"the nearest kept kernel differs in {', '.join(changed)}" if changed else ""
    try:
        if known.key != key.digest:
            raise ValueError("it is kept under another key")
        launchable(known, chain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"the kept kernel cannot be read: {error}"
    return known, ""


def serves(known: Tuned, options: TuneOptions) -> bool:
    """Whether a kept kernel is what a search under these options would find: it was measured, and
    its search was not given less."""
    return known.measured is not None and known.budget.covers(
        known.trials, options.trials, options.timeout
    )


def better(known: Tuned, found: Tuned, compare: Callable[[Sequence[Tuned]], Interleaved]) -> Tuned:
    """The faster of a kept kernel and one that a larger search found, timed in turns by `compare`
    where both were measured. The kept one stays, under the larger search's budget, where it is not
    sure that the other is faster by more than noise."""
    if found.measured is None:
        first = known.measured is not None or known.predicted <= found.predicted
    elif known.measured is None:
        first = False
    else:
        timed = compare((known, found))
        old, new = timed.seconds
        ratios = timed.ratios(0, 1)
        faster = certainty(ratios, 1 / MARGIN) >= CONFIDENT if ratios else new < old
        first = not (new < float("inf") and faster)
    if not first:
        return found
    return replace(known, budget=found.budget, trials=max(known.trials, found.trials))
