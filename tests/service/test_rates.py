"""Token buckets."""

from __future__ import annotations

import pytest

from mcfuser_service.rates import TokenBuckets


def test_a_bucket_holds_so_many_and_fills_again() -> None:
    now = 100.0
    buckets = TokenBuckets(lambda: now)
    assert [buckets.wait("a", 3, 60.0) for _ in range(3)] == [0.0] * 3
    assert buckets.wait("a", 3, 60.0) == pytest.approx(20.0)
    now += 5
    assert buckets.wait("a", 3, 60.0) == pytest.approx(15.0), "who is refused pays nothing"
    now += 15
    assert buckets.wait("a", 3, 60.0) == 0.0
    assert buckets.wait("a", 3, 60.0) == pytest.approx(20.0)
    now += 3600
    assert [buckets.wait("a", 3, 60.0) > 0 for _ in range(4)] == [False] * 3 + [True]


def test_each_key_has_its_own() -> None:
    buckets = TokenBuckets(lambda: 0.0)
    assert buckets.wait("a", 1, 60.0) == 0.0 and buckets.wait("b", 1, 60.0) == 0.0
    assert buckets.wait("a", 1, 60.0) > 0
