"""Triton's words and Gluon's, and what Gluon lacks."""

from __future__ import annotations

import pytest

from mcfuser.codegen.triton.dialect import GLUON, TRITON
from mcfuser.codegen.triton.tile import TileValue, aligned, cast, literal, spread
from mcfuser.space.statement import Illegal

TILE = TileValue("x", ("m", "n"), "float32")
WIDTHS = {"m": 64, "n": 32}.__getitem__


def test_words_belong_to_a_language() -> None:
    assert (TRITON.word("where"), GLUON.word("where")) == ("tl.where", "gl.where")
    assert cast(TRITON, TILE, "float16").text == "x.to(tl.float16)"
    assert cast(GLUON, TILE, "float16").text == "x.to(gl.float16)"
    assert (
        GLUON.full("(64,)", "0.5", "float32", ", ROWS") == "gl.full((64,), 0.5, gl.float32, ROWS)"
    )


@pytest.mark.parametrize(
    ("value", "space", "words"),
    [
        (TILE, ("n", "m"), "tl.trans(x)"),
        (TileValue("r", ("m",), "float32"), ("m", "n"), "tl.broadcast_to(r[:, None], (64, 32))"),
        (literal(0.5), ("m",), "tl.full((64,), 0.5, tl.float32)"),
    ],
)
def test_gluon_moves_no_values_among_threads(value: TileValue, space, words: str) -> None:
    assert spread(TRITON, value, space, WIDTHS).text == words
    with pytest.raises(Illegal, match="would move values among its threads"):
        spread(GLUON, value, space, WIDTHS)


def test_what_lies_as_it_is_wanted_is_the_same_in_both() -> None:
    rows = TileValue("r", ("m",), "float32")
    for language in (TRITON, GLUON):
        assert aligned(language, rows, ("m", "n")).text == "r[:, None]"
        assert spread(language, TILE, ("m", "n"), WIDTHS) == TILE
