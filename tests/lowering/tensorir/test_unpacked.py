"""Which weights a micro-kernel makes in registers."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.lowering.tensorir.unpacked import FEW, unpacked
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
