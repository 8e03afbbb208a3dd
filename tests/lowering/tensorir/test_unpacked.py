"""Which weights a micro-kernel makes in registers."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.expr import parse as expression
from mcfuser.expr import text
from mcfuser.lowering.tensorir.unpacked import FEW, made_of, unpacked
from mcfuser.space.expression import parse
from tests.support.schedules import schedules

SUM = "Y[m, n] = sum[k] X[m, k] * W[k, n]"


def made(*lines: str, outputs: tuple[str, ...] = (), constant: bool = True) -> Chain:
    fixed = {"constant": True} if constant else {}
    return from_json({
        "axes": {"m": 16, "n": 32, "k": 24},
        "tensors": {
            "X": {"shape": ["m", "k"]},
            "Q": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
            "S": {"shape": ["n"], **fixed},
        },
        "operators": [*lines],
        "outputs": [*outputs],
    })  # fmt: skip


def tiled(c: Chain, m: int) -> dict[str, bool]:
    schedule = schedules(c, parse("mnk"), {"m": m, "n": 16, "k": 8})
    buffers = {b.name: b for b in schedule.buffers}
    found = unpacked(c, buffers, schedule.body, lambda a: np.asarray([schedule.tile(a)] * 2))
    assert all(x.shape == (2,) for x in found.values())
    return {name: bool(x.all()) for name, x in found.items()}


@pytest.mark.parametrize(("rows", "few"), [(1, True), (FEW, True), (2 * FEW, False)])
def test_weights_of_few_rows_are_made_in_registers(rows: int, few: bool) -> None:
    assert tiled(made("W[k, n] = float32(Q[k, n]) * S[n]", SUM), rows) == {"W": few}


@pytest.mark.parametrize(
    "c",
    [
        made("W[k, n] = float32(Q[k, n]) * S[n]", SUM, constant=False),
        made("W[k, n] = float32(Q[k, n]) * S[n]", SUM, outputs=("W", "Y")),
        made("W[k, n] = float32(Q[k, n]) * S[n] + k", SUM),
        made("W[k, n] = float32(Q[k, n]) * S[n]", SUM, "Z[m] = sum[k, n] W[k, n] * Y[m, n]"),
        made("W[k, n] = float32(Q[k, n]) * S[n]", SUM + " where k <= m"),
        made(SUM.replace("W[k, n]", "float32(Q[k, n])")),
    ],
    ids=["data", "output", "positions", "read twice", "domain", "loaded"],
)  # fmt: skip
def test_others_are_tiles(c: Chain) -> None:
    assert not tiled(c, 1)


FOUR = "float32(bit_and(shift_right(Q[k, t, n], T[s]), 15))"


@pytest.mark.parametrize(
    ("body", "scale", "outer", "inner", "first"),
    [
        (f"({FOUR} - 8.0) * S[k, n]", "S[k, n]", "k", "ts", -8.0),
        (f"S[k, n] * ({FOUR} - Z[k, n])", "S[k, n]", "k", "ts", 0.0),
        (f"{FOUR} * S[k, n] * U[n]", "S[k, n] * U[n]", "k", "ts", 0.0),
        (f"{FOUR} * U[n]", "U[n]", "", "kts", 0.0),
        ("float32(I[k, s, t, n]) * S[k, n]", "S[k, n]", "k", "st", None),
        ("float32(I[k, s, t, n]) * V[t, n]", "V[t, n]", "t", "ks", None),
    ],
)
def test_blocks_of_weights_are_scaled_together(
    body: str, scale: str, outer: str, inner: str, first: float | None
) -> None:
    made = made_of(expression(body), ("k", "s", "t"))
    assert made is not None
    assert text(made.scale) == scale
    assert ("".join(made.outer), "".join(made.inner)) == (outer, inner)
    assert made.table is None if first is None else made.table and made.table.values[0] == first


@pytest.mark.parametrize("mask", [1, 3, 7, 15, 31])
def test_a_table_has_what_the_lowest_bits_decide(mask: int) -> None:
    body = f"(float32(bit_and(Q[k, t, n], {mask})) * 0.5 - 2.0) * S[n]"
    made = made_of(expression(body), ("k", "t"))
    assert made is not None
    if mask > 15:
        assert made.table is None
        return
    assert made.table is not None
    assert made.table.values == tuple((i & mask) * 0.5 - 2.0 for i in range(16))
    assert text(made.table.code) == "Q[k, t, n]"


@pytest.mark.parametrize(
    "body",
    [
        f"{FOUR} - 8.0",
        f"{FOUR} * Q2[k, s, t, n]",
        f"({FOUR} - 8.0) * S[k, n] + 1.0",
        "float32(I[k, s, t, n]) * float32(J[k, s, t, n]) * S[n]",
    ],
)
def test_weights_without_blocks_are_made_one_by_one(body: str) -> None:
    assert made_of(expression(body), ("k", "s", "t")) is None


def test_fewer_operations_are_counted_where_numbers_are_looked_up() -> None:
    made = made_of(expression(f"({FOUR} - 8.0) * S[k, n]"), ("k", "s", "t"))
    assert made is not None
    lanes = np.asarray([8, 16])
    assert [*made.steps(lanes, np.asarray([32.0]))] == [4 + 2 / 32, 2 + 2 / 32]
