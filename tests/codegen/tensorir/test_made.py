"""Products with weights that are made in registers: what is summed, scaled and looked up."""

from __future__ import annotations

import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.codegen import tensorir
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.unpacked import LOOKED_UP
from mcfuser.space.expression import parse
from tests.support.schedules import schedules

CODES = "float32(bit_and(shift_right(Q[k, t, n], T[s]), 15))"


def written(lanes: int, weights: str, rows: int = 1) -> str:
    c = from_json({
        "axes": {"m": rows, "n": 64, "k": 3, "s": 2, "t": 8},
        "tensors": {
            "X": {"shape": [*"mkst"]}, "T": {"shape": ["s"], "dtype": "uint8", "constant": True},
            "Q": {"shape": [*"ktn"], "dtype": "uint8", "constant": True},
            "S": {"shape": [*"kn"], "constant": True}, "Z": {"shape": [*"kn"], "constant": True},
        },
        "operators": [f"W[k, s, t, n] = {weights}",
                      "Y[m, n] = sum[k, s, t] X[m, k, s, t] * W[k, s, t, n]"],
    })  # fmt: skip
    return text(c, lanes, rows)


def text(c: Chain, lanes: int, rows: int) -> str:
    tiles = {"m": rows, "n": 64, "k": 3, "s": 2, "t": 8}
    return tensorir.generate(schedules(c, parse("mn.kst"), tiles), "kernel",
                             TensorirKnobs(4, 2, lanes)).text  # fmt: skip


def test_the_sum_of_a_block_is_scaled() -> None:
    source = written(8, f"({CODES} - 8.0) * S[k, n]")
    assert source.count("S_flat[") == 2  # of each of two vectors, not of each weight
    assert "acc0[i, j] + part0[i, j] *" in source
    assert LOOKED_UP not in source  # sixteen floats are no register


@pytest.mark.parametrize("weights", [f"({CODES} - 8.0) * S[k, n]",
                                     f"S[k, n] * ({CODES} - Z[k, n])"])  # fmt: skip
def test_numbers_of_four_bits_are_looked_up(weights: str) -> None:
    source = written(16, weights)
    first = 0.0 if "Z" in weights else -8.0
    assert source.count(LOOKED_UP) == 2
    assert f"W_codes[0] = T.float32({first})" in source
    assert f"W_codes[15] = T.float32({first + 15})" in source
    assert "for s_i in T.unroll(2):" in source  # a byte is loaded once
    assert source.index("for t_i in") < source.index("for s_i in")


def test_rows_share_what_is_looked_up() -> None:
    one, three = (written(16, f"({CODES} - 8.0) * S[k, n]", rows) for rows in (1, 3))
    assert one.count(LOOKED_UP) == three.count(LOOKED_UP)


def test_weights_that_nothing_scales_in_blocks_are_made_one_by_one() -> None:
    assert "part0" not in written(16, f"{CODES} - 8.0")
