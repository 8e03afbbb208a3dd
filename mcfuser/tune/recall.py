"""Whether a kept kernel can be used instead of a search, and which of two kernels is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mcfuser.chain import Chain
from mcfuser.measure.rounds import CONFIDENT, MARGIN, Interleaved, certainty
from mcfuser.tune.key import CacheKey, nearest
from mcfuser.tune.tuned import Cache, Tuned, TuneOptions

MakeLaunchable = Callable[[Tuned, Chain], object]
"""Makes a kept kernel ready to be launched for a chain; raises KeyError, TypeError or ValueError
where its record cannot be read."""


def recall(
    cache: Cache, key: CacheKey, chain: Chain, launchable: MakeLaunchable
) -> tuple[Tuned | None, str]:
    """The kept kernel of a key and "", or None and the reason in one clause.

    The reason names the fields in which the nearest kept key differs; it is empty where nothing was
    ever kept for the chain.
    """
    known = cache.get(key.digest)
    if known is None:
        changed = nearest(key, cache.keys_of(chain.key))
        return None, f"the nearest kept kernel differs in {', '.join(changed)}" if changed else ""
    try:
        if known.key != key.digest:
            raise ValueError("it is kept under another key")
        launchable(known, chain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"the kept kernel cannot be read: {error}"
    return known, ""


def serves(known: Tuned, options: TuneOptions) -> bool:
    """Whether a search under these options would find nothing better than a kept kernel: it was
    measured, and its search had at least as large a budget."""
    return known.measured is not None and known.budget.covers(
        known.trials, options.trials, options.timeout
    )


def better(
    known: Tuned, searched: Tuned, compare: Callable[[Sequence[Tuned]], Interleaved]
) -> Tuned:
    """The faster of a kept kernel and one that a search with a larger budget found.

    Where both were measured, and they are not the same, `compare` times them, interleaved. Where it
    is not sure that the new one is faster by more than noise, the known one is kept, with the
    larger budget.
    """
    if searched.measured is None:
        keep_known = known.measured is not None or known.predicted <= searched.predicted
    elif known.measured is None:
        keep_known = False
    elif (known.source, known.binary) == (searched.source, searched.binary):
        keep_known = True
    else:
        timed = compare((known, searched))
        old, new = timed.seconds
        ratios = timed.ratios(0, 1)
        faster = certainty(ratios, 1 / MARGIN) >= CONFIDENT if ratios else new < old
        keep_known = not (new < float("inf") and faster)
    if not keep_known:
        return searched
    return replace(known, budget=searched.budget, trials=max(known.trials, searched.trials))
