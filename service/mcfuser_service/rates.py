"""Token buckets: how many requests each API key may still make."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


@dataclass
class TokenBuckets:
    """A bucket for each key, in the memory of this process: each server process counts for itself,
    and counts anew when it is started."""

    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def wait(self, key: str, count: int, seconds: float) -> float:
        """Takes a token of a bucket that holds `count` and is filled within so many seconds.

        Gives 0; where the bucket is empty, the seconds until it has a token, and takes none.
        """
        now = self.clock()
        bucket = self._buckets.setdefault(key, _Bucket(float(count), now))
        filled = bucket.tokens + (now - bucket.at) * count / seconds
        bucket.tokens, bucket.at = min(float(count), filled), now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) * seconds / count
        bucket.tokens -= 1
        return 0.0
