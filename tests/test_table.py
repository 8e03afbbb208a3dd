"""Tables: no name is broken, at any width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mcfuser.table import Kind, TableColumn, lines, printable

LONG = "encoder.layer.0.attention.self.MatMul_12_encoder.layer.0.attention.output.MatMul_16"
COLUMNS = (
    TableColumn("chain"),
    TableColumn("name", "name"),
    TableColumn("time"),
    TableColumn("result", "words"),
)
ROWS = [
    ("1", "add3", "2.0 us", "one product with its epilogue"),
    ("2", LONG, "3.8 us", "fused, 1.70x over unfused in 3 kernels, measured in 7 rounds"),
]


def test_without_a_terminal_each_row_is_a_line() -> None:
    head, *rows = lines(COLUMNS, ROWS, None)
    assert head.split() == ["chain", "name", "time", "result"]
    assert [row.split()[1] for row in rows] == ["add3", LONG]
    assert all(row.endswith(given[-1]) for row, given in zip(rows, ROWS, strict=True))
    assert head.index("time") == rows[0].index("2.0 us") == rows[1].index("3.8 us")


def test_sentences_are_wrapped_first() -> None:
    assert lines(COLUMNS, ROWS, 140)[2:] == [
        f"2      {LONG}  3.8 us  fused, 1.70x over unfused in 3 kernels,",
        " " * (7 + len(LONG) + 10) + "measured in 7 rounds",
    ]


def test_then_they_are_put_beneath_their_rows() -> None:
    assert lines(COLUMNS, ROWS, 100) == [
        f"chain  {'name':{len(LONG)}}  time",
        f"1      {'add3':{len(LONG)}}  2.0 us",
        "  result: one product with its epilogue",
        f"2      {LONG}  3.8 us",
        "  result: fused, 1.70x over unfused in 3 kernels, measured in 7 rounds",
    ]


def test_then_long_names_become_numbers_with_a_legend() -> None:
    assert lines(COLUMNS, ROWS, 40) == [
        "chain  name  time",
        "1      add3  2.0 us",
        "  result: one product with its epilogue",
        "2      [2]   3.8 us",
        "  result: fused, 1.70x over unfused in 3",
        "    kernels, measured in 7 rounds",
        "",
        f"[2] {LONG}",
    ]


def test_a_name_that_stands_twice_has_one_number_and_two_columns_of_names_have_their_own() -> None:
    columns = (TableColumn("from", "name"), TableColumn("to", "name"))
    other = LONG[::-1]
    assert lines(columns, [(LONG, "x"), (LONG, other)], 30) == [
        "from  to", "[1]   x", "[1]   [2]", "", f"[1] {LONG}", f"[2] {other}",
    ]  # fmt: skip


def test_at_last_each_row_becomes_lines() -> None:
    assert lines(COLUMNS, ROWS[1:], 16) == [
        "",
        "chain   2",
        f"name    {LONG}",
        "time    3.8 us",
        "result  fused,",
        "        1.70x",
        "        over",
        "        unfused",
        "        in 3",
        "        kernels,",
        "        measured",
        "        in 7",
        "        rounds",
    ]


def test_control_characters_are_escaped_and_wide_ones_counted() -> None:
    assert printable("a\x1b[2J\nb\udcff") == r"a\x1b[2J\nb\udcff"
    head, row = lines((TableColumn("n", "name"), TableColumn("t")), [("中中", "x")], None)
    assert (head, row) == ("n     t", "中中  x")


@given(
    st.lists(
        st.tuples(st.text("ab.", min_size=1, max_size=60), st.text("xy ", max_size=120)),
        min_size=1, max_size=5,
    ),
    st.sampled_from(["figure", "name"]),
    st.integers(1, 200) | st.none(),
)  # fmt: skip
def test_every_name_is_whole_on_some_line(
    rows: list[tuple[str, str]], kind: Kind, width: int | None
) -> None:
    columns = (TableColumn("n", kind), TableColumn("w", "words"))
    shown = lines(columns, rows, width)
    for name, words in rows:
        assert any(name in line for line in shown)
        for word in words.split():
            assert any(word in line.split() for line in shown)
    names = max(len(name) for name, _ in rows)
    words = max((len(w) for _, some in rows for w in some.split()), default=0)
    if width is not None and names + words + 12 <= width:
        assert all(cell_len(line) <= width for line in shown)


@pytest.mark.parametrize("width", [None, 80])
def test_a_table_without_rows_has_its_titles(width: int | None) -> None:
    assert lines(COLUMNS, [], width) == ["chain  name  time  result"]
