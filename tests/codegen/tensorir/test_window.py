"""Reductions of windows: which results are in registers together."""

from __future__ import annotations

import re

import pytest

from mcfuser.chain import Bounds, Chain, fixed
from mcfuser.codegen.tensorir import generate
from mcfuser.space.expression import parse
from mcfuser.space.reference import evaluate
from tests.support.drawn_schedules import at_run_time
from tests.support.pictures import depthwise
from tests.support.schedules import schedules
from tests.support.tensorir_agree import WIDE, call, compiled, drawn_arrays, error, run


def text(chain: Chain, **tiles: int) -> str:
    schedule = schedules(chain, parse("mi.ks"), {"k": 3, "s": 3} | tiles)
    return generate(schedule, "kernel", WIDE).text


def registers(source: str) -> list[tuple[int, int]]:
    """The rows and lanes of the results that are in registers together."""
    found = re.findall(r"window_\d+ = T.alloc_buffer\(\((\d+), (\d+)\)", source)
    return [(int(rows), int(lanes)) for rows, lanes in found]


@pytest.mark.parametrize(("rows", "together"), [(7, 7), (14, 7), (28, 7), (16, 8), (13, 1), (1, 1)])
def test_as_many_rows_are_reduced_side_by_side_as_divide_a_tile(rows: int, together: int) -> None:
    chain = depthwise(rows, 14)
    assert registers(text(chain, m=rows, i=14)) == [(together, 8)] * 2
    flat, known = drawn_arrays(chain)
    found = run(schedules(chain, parse("mi.ks"), {"m": rows, "i": 14, "k": 3, "s": 3}), chain, WIDE,
                flat)  # fmt: skip
    assert error(found, evaluate(chain, known)) < 1e-6


def test_rows_of_which_the_last_tile_has_fewer_are_reduced_one_by_one() -> None:
    assert registers(text(depthwise(14, 14), m=4, i=14)) == [(1, 8)] * 2


def test_windows_that_lie_apart_are_reduced_row_by_row() -> None:
    """Their lanes are gathered by shuffles, which take the registers that rows would."""
    assert registers(text(depthwise(8, 16, step=2), m=8, i=16)) == [(1, 16)]


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_what_is_reduced_at_once_is_not_initialised_in_memory(reduce: str) -> None:
    """The registers are: with what the reduction ignores, so that a position may be taken twice."""
    chain, tiles = depthwise(4, 7, reduce=reduce), {"b": 1, "m": 4, "i": 7, "k": 3, "s": 3}
    schedule = schedules(chain, parse("mi.ks" if reduce == "sum" else "bmi.ks"), tiles)
    source = generate(schedule, "kernel", WIDE).text
    assert "C_tile[0, i1, j] =" not in source
    assert registers(source) == [(4, 4)] * 2
    flat, known = drawn_arrays(chain)
    assert error(run(schedule, chain, WIDE, flat), evaluate(chain, known)) < 1e-6


def test_windows_that_loops_go_through_add_to_what_was_there() -> None:
    """A position that is taken twice would be added twice."""
    chain = depthwise(4, 7)
    tiles = {"m": 4, "i": 7, "k": 1, "s": 3}
    source = generate(schedules(chain, parse("mi.ks"), tiles), "kernel", WIDE).text
    assert [lanes for _, lanes in registers(source)] == [4, 1], "no vector begins earlier"
    flat, known = drawn_arrays(chain)
    found = run(schedules(chain, parse("mi.ks"), tiles), chain, WIDE, flat)
    assert error(found, evaluate(chain, known)) < 1e-6


@pytest.mark.parametrize("rows", [1, 4, 6])
def test_rows_whose_number_is_known_at_run_time_only_are_reduced_one_by_one(rows: int) -> None:
    chain = at_run_time(depthwise(6, 14), {"m": Bounds(1, 6)})
    schedule = schedules(chain, parse("mi.ks"), {"m": 6, "i": 14, "k": 3, "s": 3})
    source = generate(schedule, "kernel", WIDE)
    assert registers(source.text) == [(1, 8)] * 2
    plain = fixed(chain, {"m": rows})
    flat, known = drawn_arrays(plain)
    (function,) = compiled([source.text])
    found = call(source, function, chain, flat, {"m": rows})
    shaped = {n: a.reshape(plain.shape(n)) for n, a in found.items()}
    assert error(shaped, evaluate(plain, known)) < 1e-6
