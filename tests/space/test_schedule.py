"""Schedules: sizes of tiles, and how a candidate prints."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json, gemm, to_json
from mcfuser.expr import Affine
from mcfuser.space.expression import parse
from mcfuser.space.place import place
from mcfuser.space.program import Program, program
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Buffer, Dim, Load, Loop, loops, notation, statements
from tests.support.chains import LINES, chain, named


def scheduled(of: Program | Chain, expression: str, tiles: dict[str, int]) -> Schedule:
    ready = of if isinstance(of, Program) else program(of)
    dead = [a for a, t in tiles.items() if t >= ready.chain.size(a)]
    buffers, body = place(ready, parse(expression), dead)
    return Schedule(ready.chain, parse(expression), tuple(tiles.items()), buffers, body)


RAGGED = scheduled(gemm(2, 50, 40, 24, 16, "float16"), "mh.nk", {"m": 16, "n": 32, "k": 8, "h": 16})


def test_a_candidate_prints_as_the_papers_pseudo_code() -> None:
    s = scheduled(gemm(1, 64, 32, 32, 16), "mh.nk", {"m": 16, "n": 16, "k": 16, "h": 8})
    assert str(s) == "\n".join([
        "grid m in 4 x 16:",
        "  grid h in 2 x 8:",
        "    E = 0.0",
        "    serial n in 2 x 16:",
        "      C = 0.0",
        "      serial k in 2 x 16:",
        "        A = load A[b, m, k]",
        "        B = load B[b, k, n]",
        "        C <- sum[k] A[b, m, k] * B[b, k, n]",
        "      D = load D[b, n, h]",
        "      E <- sum[n] C[b, m, n] * D[b, n, h]",
        "    store E = E",
    ])  # fmt: skip


def test_repairs_and_domains_print_too() -> None:
    c = named("attention", {"b": 1, "m": 4, "n": 8, "k": 4, "h": 4})
    lines = str(scheduled(c, "m.n(k,h)", {"m": 2, "n": 4, "k": 4, "h": 4})).splitlines()
    assert "    R_old = R" in lines
    assert "    R <- max[n] X[b, m, n] where n <= m" in lines  # M may mask, so it is masked again
    assert any(line.startswith("    U = repair ") for line in lines)
    assert any(x.startswith("  O = ") and "U[b, m, h] / Z[b, m]" in x for x in lines)


def test_trips_cover_the_extent() -> None:
    assert [RAGGED.trips(a) for a in "bmnkh"] == [2, 4, 2, 3, 1]
    assert [RAGGED.ragged(a) for a in "bmnkh"] == [False, True, True, False, False]
    assert RAGGED.tile("b") == 1
    assert RAGGED.grid == (("b", 2), ("m", 4))


def test_a_run_time_extent_is_always_ragged() -> None:
    document = to_json(gemm(1, 64, 32, 32, 16))
    document["axes"]["m"] = [1, 64]  # type: ignore[index]
    s = scheduled(from_json(document), "mh.nk", {"m": 16, "n": 16, "k": 16, "h": 8})
    assert s.trips("m") == 4
    assert s.ragged("m")


def test_shapes_and_bytes_of_tiles() -> None:
    assert RAGGED.shape("A") == (1, 16, 8)
    assert RAGGED.bytes_of("A") == 16 * 8 * 2
    assert RAGGED.bytes_of("C") == 16 * 32 * 4  # accumulated in float32


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("mnkh"), st.integers(-3, 3).filter(bool)), max_size=3,
             unique_by=lambda t: t[0]),
    st.integers(-4, 4), st.booleans(),
)  # fmt: skip
def test_a_tiles_extent_is_the_span_of_its_index(terms, offset, whole) -> None:
    dim = Dim(Affine(tuple(terms), offset), whole)
    positions = {offset}
    for a, c in terms:
        n = RAGGED.tile(a) * (RAGGED.trips(a) if whole else 1)
        positions = {p + c * i for p in positions for i in (0, n - 1)}
    assert RAGGED.extent(dim) == max(positions) - min(positions) + 1
    s = Schedule(RAGGED.chain, RAGGED.expression, RAGGED.tiles,
                 (Buffer("X", "A", (dim, dim), "float16", "shared"),), ())  # fmt: skip
    assert s.bytes_of("X") == 2 * prod(s.shape("X"))


@pytest.mark.parametrize("width", [1, 3, 8, 20])
@pytest.mark.parametrize("tiles", [(4, 4), (5, 3), (3, 8)])
def test_a_window_takes_the_iterations_that_hold_a_position_and_no_others(
    width: int, tiles: tuple[int, int]
) -> None:
    lines = [f"R[m] = max[n] X[m, n] where n <= m and m - n < {width}"]
    s = scheduled(
        chain({"m": 16, "n": 16}, {"X": "mn"}, lines), "m.n", dict(zip("mn", tiles, strict=True))
    )
    loop = next(x for x in loops(s.body) if x.axis == "n")
    for start in range(0, 16, s.tile("m")):
        rows = range(start, min(start + s.tile("m"), 16))
        needed = {n // s.tile("n") for m in rows for n in range(16) if n <= m and m - n < width}
        assert set(s.iterations(loop, {"m": start})) == needed


def test_an_index_reaches_over_all_positions_of_an_axis_without_a_loop() -> None:
    s = scheduled(gemm(1, 48, 40, 16, 8), "mnk", {"m": 16, "n": 8, "k": 16, "h": 8})
    index = Affine((("m", 2), ("n", -1)), 3)
    assert s.reach(index, {}) == (3 - 39, 3 + 2 * 47)
    assert s.reach(index, {"m": 16}) == (3 + 32 - 39, 3 + 2 * 31)
    assert s.reach(index, {"n": 8}) == (3 - 15, 3 + 2 * 47 - 8)


@pytest.mark.parametrize(("parts", "span"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1), (7, 1)])
def test_parts_of_a_split_loop_share_its_iterations(parts: int, span: int) -> None:
    """Each takes equally many, but for the last ones."""
    of = program(gemm(1, 16, 40, 8, 8))
    tiles = {"m": 16, "n": 8, "k": 8, "h": 8}
    buffers, body = place(of, parse("m.n"), ("m", "k", "h"), split="n")
    s = Schedule(of.chain, parse("m.n"), tuple(tiles.items()), buffers, body, parts)
    assert (s.trips("n"), s.span("n")) == (5, span)
    outer, inner = (x for x in loops(s.body) if x.axis == "n")
    assert s.split == outer and s.iterations(outer, {}) == range(parts)
    runs = [s.iterations(inner, {"n": part * span * s.tile("n")}) for part in range(parts)]
    assert [i for run in runs for i in run] == list(range(5))
    assert f"split n in {parts} parts of {span} x 8:" in str(s)
    assert f"serial n in {span} x 8:" in str(s)


def test_only_the_split_loop_has_fewer_iterations_in_a_part() -> None:
    of = program(gemm(1, 16, 40, 16, 8))
    tiles = {"m": 16, "n": 8, "k": 4, "h": 8}
    buffers, body = place(of, parse("m.nk"), ("m", "h"), split="n")
    s = Schedule(of.chain, parse("m.nk"), tuple(tiles.items()), buffers, body, 3)
    assert "serial n in 2 x 8:" in str(s) and "serial k in 4 x 4:" in str(s)


def test_statements_come_with_the_loops_around_them() -> None:
    found = {
        s.buffer: "".join(loop.axis for loop in outer)
        for s, outer in statements(RAGGED.body)
        if isinstance(s, Load)
    }
    assert found == {"A": "bmnk", "B": "bmnk", "D": "bmn"}
    assert [loop.axis for loop in loops(RAGGED.body)] == ["b", "m", "n", "k"]


@pytest.mark.parametrize("hidden", ["", "b"])
def test_batch_loops_can_be_left_out(hidden: str) -> None:
    inner = "m(n(k(L_A,L_B,C_C),L_D,C_E),S_E)"
    assert notation(RAGGED.body, hidden) == ("" if hidden else "b") + inner


@pytest.mark.parametrize("name", sorted(LINES))
def test_schedules_are_values(name: str) -> None:
    c = named(name, dict.fromkeys("bmnkhpc", 8))
    order = "".join(a for a in "mnkhpc" if a in [x.name for x in c.axes])
    tiles = dict.fromkeys(order, 4)
    one, two = scheduled(c, order, tiles), scheduled(c, order, tiles)
    assert one == two
    assert hash(one) == hash(two)
    assert all(isinstance(loop, Loop) for loop in loops(one.body))
