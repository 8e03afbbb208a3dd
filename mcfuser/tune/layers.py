"""One's own cache with a team's under it, from which nothing is taken but schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mcfuser.chain import Chain
from mcfuser.tune.exchange import TuningRecord
from mcfuser.tune.key import CacheKey
from mcfuser.tune.related import Relative
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Cache, Tuned, Use

Offer = Callable[[CacheKey], TuningRecord | None]
"""The tuning record that a team keeps under a key, None if there is none."""


@dataclass
class LayeredCache:
    """One's `own` cache; where it misses, a team's tuning record is `offer`ed.

    The kernel of a record is generated, built and checked here before it is kept in the own cache
    (mcfuser.tune.tuner). Nothing is ever written to the team's.
    """

    own: Cache
    offer: Offer

    def get(self, key: str) -> Tuned | None:
        return self.own.get(key)

    def put(self, tuned: Tuned) -> None:
        self.own.put(tuned)

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        return self.own.keys_of(chain_key)

    def note(self, uses: Iterable[Use]) -> None:
        self.own.note(uses)

    def tried(self, key: str) -> Sequence[Tried]:
        return self.own.tried(key)

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        self.own.keep_tried(made, chain, device, tried)

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        return self.own.related(chain, device)

    def offered(self, key: CacheKey) -> TuningRecord | None:
        record = self.offer(key)
        return record if record is not None and record.made == key else None
