"""Whether a kept kernel can be used instead of a search, and which of two kernels is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from mcfuser.chain import Chain
from mcfuser.measure.rounds import CONFIDENT, MARGIN, Interleaved, certainty
from mcfuser.tune.age import age, driver_changed, reasons
from mcfuser.tune.key import CacheKey, nearest
from mcfuser.tune.tuned import Cache, Tuned, TuneOptions

MakeLaunchable = Callable[[Tuned, Chain], object]
"""Makes a kept kernel ready to be launched for a chain; raises KeyError, TypeError or ValueError
where its record cannot be read."""


def recall(
    cache: Cache,
    key: CacheKey,
    chain: Chain,
    launchable: MakeLaunchable,
    soft: Mapping[str, int] = MappingProxyType({}),
    driver: Callable[[], str] = str,
) -> tuple[Tuned | None, str]:
    """The kept kernel of a key and "", or None and the reason in one clause.

    Where there is none, a kernel serves whose key differs only in programs that are `soft`
    (mcfuser.tune.age). It is marked as stale, and so is one that was timed under another `driver`.
    The reason names the fields in which the nearest kept key differs; it is empty where nothing was
    ever kept for the chain.
    """
    known, stale = cache.get(key.digest), ""
    expected = key.digest
    if known is None:
        kept = cache.keys_of(chain.key)
        near = next((k for k in kept if age(k, key, soft) == "stale"), None)
        if near is not None:
            expected, stale = near.digest, "; ".join(reasons(near, key))
            known = cache.get(expected)
        if known is None:
            changed = nearest(key, kept)
            why = f"the nearest kept kernel differs in {', '.join(changed)}" if changed else ""
            return None, why
    try:
        if known.key != expected:
            raise ValueError("it is kept under another key")
        launchable(known, chain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"the kept kernel cannot be read: {error}"
    if "driver" in known.conditions:
        stale = stale or driver_changed(known.conditions["driver"], driver())
    return replace(known, stale=stale) if stale else known, ""


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
