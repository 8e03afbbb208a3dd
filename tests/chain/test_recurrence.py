"""A recurrence is a value that can be written down, and knows what its stages need."""

from __future__ import annotations

from mcfuser.chain.recurrence import (
    NO_RECURRENCES,
    Recurrence,
    RecurrenceLimits,
    RecurrentStage,
    is_recurrence,
    recurrence_of,
    recurrence_symbol,
)
from mcfuser.expr import parse

RESET = RecurrentStage(
    "h", ("sum_z", "sum_r"),
    (
        ("z", parse("1.0 / (exp(-(x[j] + sum_z[j])) + 1.0)")),
        ("r", parse("min(max(sum_r[j], 0.0), 1.0)")),
        ("reset", parse("r[j] * h[j]")),
    ),
)  # fmt: skip
LAST = RecurrentStage("reset", ("sum_n",), (("next", parse("h[j] + z[j] * sum_n[j] * bias[j]")),))


def of(
    *stages: RecurrentStage, backward: tuple[bool, ...] = (False,), lengths: bool = False
) -> Recurrence:
    return Recurrence(("x",), ("bias",), (("h", "next"),), stages, backward, lengths)


def test_a_recurrence_is_read_as_it_was_written() -> None:
    for backward in ((False,), (True,), (False, True)):
        written = of(RESET, LAST, backward=backward, lengths=len(backward) > 1)
        symbol = recurrence_symbol(written)
        assert is_recurrence(symbol) and recurrence_of(symbol) == written
        assert written.directions == len(backward)
    assert not is_recurrence("tvm.contrib.sort")


def test_what_later_stages_multiply_or_read_is_kept() -> None:
    found = of(RESET, LAST)
    assert found.kept == ("z", "reset")
    assert found.sums == 3
    assert of(RESET).kept == ()


def test_limits_are_those_of_a_type_and_of_the_products_of_stages() -> None:
    sizes = (("float32", (4,), 8, 100), ("float32", (4,), 32, 50), ("float16", (2, 1), 8, 50))
    limits = RecurrenceLimits(("float32", "float16"), sizes)
    assert limits.hold("float32", (4,), 8, 100) and limits.hold("float32", (4,), 32, 50)
    assert not limits.hold("float32", (4,), 8, 101) and not limits.hold("float32", (4,), 9, 51)
    assert not limits.hold("float32", (4,), 33, 1)
    assert limits.hold("float16", (2, 1), 8, 50) and not limits.hold("float16", (4,), 8, 50)
    assert not limits.hold("bfloat16", (4,), 1, 1)
    assert RecurrenceLimits(("float16",)).hold("float16", (1,), 10_000, 10_000)
    assert not NO_RECURRENCES.hold("float32", (1,), 1, 1)
