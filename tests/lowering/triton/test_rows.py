"""Tiles that are moved as the rows that they are in memory."""

from __future__ import annotations

import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.lowering.triton.rows import TileRow
from mcfuser.space.schedule import Schedule
from tests.support.triton_agree import agree
from tests.support.triton_cases import scheduled

HEADS, PAIRS = 2, 8


def turned(
    rows: int = 4, pairs: int = PAIRS, dtype: str = "float16", out: str = "rows", first: int = 0,
    row: int = 2 * HEADS * PAIRS, beside: int = 2,
) -> Chain:  # fmt: skip
    """A rotary embedding of pairs that lie side by side: each is turned by an angle of its own. The
    pairs are stored `first` elements behind the pointer, and every `row`; there may be `beside`
    elements from one to the next."""
    head = row // HEADS if pairs == PAIRS else beside * pairs
    strides = [row, head, beside]
    columns = {"strides": [1, rows * pairs * 2, rows * 2, rows]}
    written = columns if out == "columns" else {}
    return from_json({
        "axes": {"m": rows, "i": HEADS, "j": pairs, "l": 2},
        "tensors": {
            "X": {"shape": list("mijl"), "dtype": dtype, "strides": [*strides, 1], "offset": first},
            "F": {"shape": list("mij"), "dtype": dtype, "strides": strides, "offset": first + 1},
            "G": {"shape": list("mij"), "dtype": dtype, "strides": strides, "offset": first},
            "C": {"shape": list("mjl")}, "S": {"shape": list("mjl")},
            "E": {"shape": list("mijl"), "dtype": dtype} | written,
        },
        "operators": ["E[m, i, j, l] = X[m, i, j, l] * C[m, j, l]"
                      " + select(l < 1, -F[m, i, j], G[m, i, j]) * S[m, j, l]"],
    })  # fmt: skip


def of(chain: Chain, expression: str = "mijl.", **tiles: int) -> Schedule:
    sizes = {a.name: chain.size(a.name) for a in chain.axes}
    return scheduled(chain, expression, {**sizes, "m": 2, **tiles})


def row(schedule: Schedule, name: str) -> TileRow | None:
    layout, chain = TileLayout(schedule), schedule.chain
    tensor = chain.tensor(name)
    indices = layout.loads[name].read.indices if name in layout.loads else ()
    return layout.row(tensor, indices, layout.space(name))


@pytest.mark.parametrize("out", ["rows", "columns"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("tiles", [{}, {"j": 4}, {"m": 1, "j": 4}, {"i": 1, "m": 4}])
def test_pairs_that_are_turned(tiles: dict[str, int], dtype: str, out: str) -> None:
    chain = turned(dtype=dtype, out=out)
    text = agree(of(chain, **tiles), chain).text
    assert text.count("tl.split(") == 2, "one for each half"
    assert text.count("tl.reshape(") == (6 if out == "rows" else 5)
    assert "l[None" not in text.split("X_row")[1].split("tl.where")[0]


def test_a_row_has_the_axes_that_lie_side_by_side_in_it() -> None:
    schedule = of(turned(), j=4)
    assert row(schedule, "X") == row(schedule, "C") == TileRow(("j", "l"), 2)
    assert row(schedule, "F") == TileRow(("j",), 2, 1)
    assert row(schedule, "G") == TileRow(("j",), 2, 0)
    assert row(schedule, "F") != row(of(turned(first=1)), "F")


@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_pair_begins_at_an_even_element(first: int) -> None:
    """So what is loaded with the wanted one never lies in a page of its own."""
    chain = turned(first=first, row=40)
    schedule = of(chain)
    agree(schedule, chain)
    found = {n: row(schedule, n) for n in "FG"}
    assert [r.picked for r in found.values() if r] == [(first + 1) % 2, first % 2]


def test_what_is_no_row_is_moved_as_it_is() -> None:
    ragged = of(turned(rows=4, pairs=6), j=6)
    assert row(ragged, "X") is None and row(ragged, "F") is None, "8 lanes for 6 pairs"
    odd = of(turned(row=2 * HEADS * PAIRS + 2, beside=2), i=1)
    assert row(odd, "X") == TileRow(("j", "l"), 2) and row(odd, "F") is None, "heads of 17"
    apart = turned(beside=3, row=6 * PAIRS)
    assert row(of(apart), "X") is None and row(of(apart), "F") is None
    for schedule, chain in ((ragged, turned(rows=4, pairs=6)), (of(apart), apart)):
        text = agree(schedule, chain).text
        assert "X_row" not in text and "tl.split(" not in text


def test_rows_with_masks_along_other_axes() -> None:
    chain = turned(rows=5)
    source = agree(of(chain, m=4), chain)
    assert "mask=m_in" in source.text and "tl.split(" in source.text


def test_long_rows_are_vectors_already_and_products_take_matrices() -> None:
    chain = from_json(
        {
            "axes": {"m": 4, "i": 4, "j": 8},
            "tensors": {"X": {"shape": list("mij"), "dtype": "float16"}, "F": {"shape": ["m"]}},
            "operators": ["E[m, i, j] = X[m, i, j] * F[m]"],
        }
    )
    assert row(scheduled(chain, "mij.", {"m": 2, "i": 4, "j": 8}), "X") is None
    product = from_json({
        "axes": {"m": 16, "n": 16, "k": 16},
        "tensors": {"A": {"shape": list("mk"), "dtype": "float16", "strides": [32, 2]},
                    "B": {"shape": list("kn"), "dtype": "float16"}},
        "operators": ["E[m, n] = sum[k] A[m, k] * B[k, n]"],
    })  # fmt: skip
    assert row(scheduled(product, "mn.k", {"m": 16, "n": 16, "k": 16}), "A") is None
