"""A cache that counts its answers."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.tune.tuned import MemoryCache
from mcfuser_service.counted import CountedCache
from tests.support.kernels import tuned


def test_a_kernel_is_found_or_made() -> None:
    kept, fresh, slow = tuned("1"), tuned("2"), tuned("3")
    own = MemoryCache()
    own.put(kept)
    own.put(slow)
    counted = CountedCache(own)
    assert counted.answers() == {"hit": 0, "team": 0, "miss": 0}
    for _ in range(2):
        assert counted.get(kept.key) == kept
    assert counted.get(fresh.key) is None
    counted.put(fresh)
    assert counted.get(fresh.key) == fresh, "it was made here"
    assert counted.get(slow.key) == slow
    counted.put(slow)  # its search was too short
    assert counted.answers() == {"hit": 1, "team": 0, "miss": 2}
    assert own.get(fresh.key) == fresh


def test_a_team_s_record_counts_where_its_kernel_is_taken() -> None:
    good, bad = replace(tuned("1"), missed=""), tuned("2")
    counted = CountedCache(MemoryCache())
    counted.taken |= {good.key, bad.key}  # as `offered` notes them
    counted.put(good)
    counted.put(replace(bad, missed="the team's kernel is refused: it is wrong"))
    assert counted.answers() == {"hit": 0, "team": 1, "miss": 1}
