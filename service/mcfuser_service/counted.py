"""A cache that counts how often it had a kernel, and how often one had to be found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mcfuser.chain import Chain
from mcfuser.tune.exchange import TuningRecord
from mcfuser.tune.key import CacheKey
from mcfuser.tune.related import Relative
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Cache, Tuned, Use


@dataclass
class CountedCache:
    """A cache, and the keys of the kernels that it had, that a team offered, and that were put."""

    cache: Cache
    found: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)

    def answers(self) -> dict[str, int]:
        """For how many kernels the answer was a "hit", a team's record ("team") or a "miss". A kept
        kernel that was searched again is a miss."""
        return {
            "hit": len(self.found - self.made),
            "team": len(self.made & self.taken),
            "miss": len(self.made - self.taken),
        }

    def get(self, key: str) -> Tuned | None:
        tuned = self.cache.get(key)
        if tuned is not None:
            self.found.add(key)
        return tuned

    def put(self, tuned: Tuned) -> None:
        self.made.add(tuned.key)
        if tuned.missed:  # it was searched for: what the team offered was refused
            self.taken.discard(tuned.key)
        self.cache.put(tuned)

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        return self.cache.keys_of(chain_key)

    def note(self, uses: Iterable[Use]) -> None:
        self.cache.note(uses)

    def tried(self, key: str) -> Sequence[Tried]:
        return self.cache.tried(key)

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        self.cache.keep_tried(made, chain, device, tried)

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        return self.cache.related(chain, device)

    def offered(self, key: CacheKey) -> TuningRecord | None:
        record = self.cache.offered(key)
        if record is not None:
            self.taken.add(key.digest)
        return record
