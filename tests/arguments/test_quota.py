"""Rates, sizes and lifetimes in words."""

import pytest

from mcfuser.arguments.quota import LARGEST, MOST, Rate, lifetime, rate, size
from mcfuser.errors import InputError


def test_rates() -> None:
    assert rate("60/m") == Rate(60, 60.0) and rate(" 1/d ") == Rate(1, 86400.0)
    assert [str(rate(w)) for w in ("60/m", "5/s", "7/h")] == ["60/m", "5/s", "7/h"]
    assert str(Rate(3, 5.0)) == "3/5s"


def test_sizes() -> None:
    given = {"1": 1, "10GB": 10**10, "1.5 KiB": 1536, "0.5MB": 500_000, "2TiB": 1 << 41}
    assert {words: size(words) for words in given} == given


def test_lifetimes() -> None:
    assert (lifetime("90d"), lifetime("12h"), lifetime("4w")) == (7_776_000, 43_200, 2_419_200)


@pytest.mark.parametrize(
    ("parse", "words"),
    [
        (rate, "60"), (rate, "0/m"), (rate, "-1/m"), (rate, "60/y"), (rate, "1.5/s"), (rate, ""),
        (rate, f"{MOST + 1}/s"), (rate, "٣/s"), (rate, "9" * 5000 + "/s"),
        (size, "0"), (size, "10gb"), (size, "GB"), (size, "-1"), (size, f"{LARGEST + 1}"),
        (size, "1e9"), (size, "999999999999TB"), (size, "nan"),
        (lifetime, "90"), (lifetime, "0d"), (lifetime, "3661d"), (lifetime, "1.5d"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused(parse: object, words: str) -> None:
    assert callable(parse)
    with pytest.raises(InputError, match="is not one; write") as refused:
        parse(words)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
