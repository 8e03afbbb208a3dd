"""Whole numbers that stay exact."""

from __future__ import annotations

import pytest

from mcfuser.algebra.whole import exact
from mcfuser.chain import Chain, from_json


def made(line: str, **dtypes: str) -> Chain:
    tensors = {n: {"shape": ["m"], "dtype": d} for n, d in dtypes.items()}
    return from_json({"axes": {"m": 70_000, "n": 60_000}, "tensors": tensors, "operators": [line]})


@pytest.mark.parametrize(
    ("line", "wide"),
    [
        ("Y[m] = t[m] + 1", "Y[m] = int64(t[m]) + int64(1)"),
        ("Y[m] = -t[m]", "Y[m] = -int64(t[m])"),
        ("Y[m, n] = m * 50000 + n", "Y[m, n] = int64(m) * int64(50000) + n"),
        ("Y[m] = (t[m] + 1) * t[m]", "Y[m] = (int64(t[m]) + int64(1)) * t[m]"),
        ("Y[m] = bit_and(t[m], l[m]) + 1", "Y[m] = int64(bit_and(t[m], l[m])) + int64(1)"),
        ("Y[m] = (m < 3) + t[m]", "Y[m] = int64(m < 3) + int64(t[m])"),
    ],
)
def test_what_may_need_more_than_32_bits_has_64(line: str, wide: str) -> None:
    assert str(exact(made(line, t="int32", l="int32"))) == wide


@pytest.mark.parametrize(
    "line",
    [
        "Y[m, n] = select(n <= m + 2 and m - n < 5, 1.0, 0.0)",
        "Y[m] = l[m] * l[m] + 1",
        "Y[m] = t[m] * 0.5",
        "Y[m] = select(t[m] == m, 1, 0)",
        "Y[m] = max(t[m], 3)",
        "Y[m] = b[m] * m",
    ],
)
def test_what_has_room_stays(line: str) -> None:
    c = made(line, t="int32", l="int64", b="bool")
    assert exact(c) is c


def test_a_choice_is_as_large_as_either_of_its_branches() -> None:
    whole = {"shape": ["m"], "dtype": "int32"}
    for branches in ("t[m], 0", "0, t[m]"):
        document = {"axes": {"m": 4}, "tensors": {"t": whole, "Y": whole},
                    "operators": [f"Y[m] = select(m < 2, {branches}) * 2"]}  # fmt: skip
        assert "int64(" in str(exact(from_json(document)).operator("Y"))


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("F[m] * 0.5", "int32(min(max(F[m] * 0.5, 0.0), 255.0))"),
        ("int32(F[m])", "int32(min(max(int32(F[m]), 0.0), 255.0))"),
        ("min(max(round(F[m]), -1.0), 9.0)",
         "int32(min(max(min(max(round(F[m]), -1.0), 9.0), 0.0), 255.0))"),
        ("min(max(round(F[m]) + 3.0, 0.0), 255.0)",
         "int32(min(max(round(F[m]) + 3.0, 0.0), 255.0))"),
        ("bit_and(t[m], 15)", "int32(bit_and(t[m], 15))"),
    ],
)  # fmt: skip
def test_what_becomes_a_narrow_integer_is_bounded(body: str, made: str) -> None:
    tensors = {"F": {"shape": ["m"]}, "t": {"shape": ["m"], "dtype": "int32"},
               "Y": {"shape": ["m"], "dtype": "uint8"}}  # fmt: skip
    used = {n: t for n, t in tensors.items() if n == "Y" or f"{n}[" in body}
    c = from_json({"axes": {"m": 4}, "tensors": used, "operators": [f"Y[m] = {body}"]})
    assert str(exact(c)) == f"Y[m] = {made}"
