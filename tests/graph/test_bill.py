"""Of two sets of chains, the dearer one is found with few prices."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcfuser.graph.bill import CLEAR, dearer

KEYS = "abcdefghij"


def asked(one: dict[str, int], other: dict[str, int], prices: dict[str, int]) -> tuple[bool, str]:
    """The answer for sets of keys whose weights are their prices, and the keys that were priced."""
    known = list[str]()

    def price(key: str) -> int:
        known.append(key)
        return prices[key]

    weights = {key: float(p) for key, p in prices.items()}
    return dearer(Counter(one), Counter(other), weights, price), "".join(known)


def test_what_is_clear_needs_the_largest_alone() -> None:
    prices = {"a": 50, "b": 3, "c": 2, "d": 20, "e": 2, "f": 1}
    for one, other, answer in (("abc", "def", True), ("def", "abc", False)):
        found, known = asked(dict.fromkeys(one, 1), dict.fromkeys(other, 1), prices)
        assert found is answer and sorted(known) == ["a", "d"]


def test_counts_count() -> None:
    prices = {"a": 10, "b": 9}
    assert asked({"a": 1}, {"b": 3}, prices)[0] is False
    assert asked({"a": 3}, {"b": 1}, prices)[0] is True


def test_a_set_of_no_chains_costs_nothing() -> None:
    assert asked({}, {"a": 1}, {"a": 7})[0] is False
    assert asked({"a": 1}, {}, {"a": 7})[0] is True
    assert asked({}, {}, {}) == (False, "")


@given(
    st.dictionaries(st.sampled_from(KEYS[:5]), st.integers(1, 9)),
    st.dictionaries(st.sampled_from(KEYS[5:]), st.integers(1, 9)),
    st.lists(st.integers(1, 100), min_size=10, max_size=10),
    st.lists(st.floats(0.5, 100.0), min_size=10, max_size=10),
)
def test_sets_of_about_one_cost_are_priced_whole(
    one: dict[str, int], other: dict[str, int], prices: list[int], weights: list[float]
) -> None:
    """Whatever the weights say, unless a sample is as clear as it must be."""
    cost = dict(zip(KEYS, prices, strict=True))
    known = list[str]()

    def price(key: str) -> int:
        known.append(key)
        return cost[key]

    found = dearer(Counter(one), Counter(other), dict(zip(KEYS, weights, strict=True)), price)
    totals = [sum(n * cost[k] for k, n in s.items()) for s in (one, other)]
    assert len(known) == len(set(known)) and set(known) <= one.keys() | other.keys()
    if set(known) == one.keys() | other.keys():
        assert found is (totals[0] > totals[1])
    else:
        priced = [sum(s[k] * cost[k] for k in s if k in known) for s in (one, other)]
        shares = [
            sum(s[k] * w for k, w in zip(KEYS, weights, strict=True) if k in s and k in known)
            / sum(s[k] * w for k, w in zip(KEYS, weights, strict=True) if k in s)
            if s else 1.0
            for s in (one, other)
        ]  # fmt: skip
        expected = [p / h if p else 0.0 for p, h in zip(priced, shares, strict=True)]
        low, high = sorted(expected)
        whole = [set(s) <= set(known) for s in (one, other)]
        assert high > CLEAR * low * (1 - 1e-9) or any(whole)
