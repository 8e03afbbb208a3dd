"""The loops around each operator."""

from __future__ import annotations

import pytest

from mcfuser.chain import gemm
from mcfuser.space.expression import parse
from mcfuser.space.nesting import Nesting, nesting
from mcfuser.space.program import program
from mcfuser.space.statement import Illegal

PAIR = program(gemm(2, 8, 8, 8, 8))
GRID = ("b", "m", "h")


def around(expression: str, dead: str = "", split: str | None = None) -> Nesting:
    return nesting(PAIR, parse(expression), dead, split)


def test_an_operator_runs_in_the_loops_up_to_its_rightmost_related_one() -> None:
    assert around("mh.nk") == Nesting(GRID, ((*GRID, "n", "k"), (*GRID, "n")))
    assert around("m.n(k,h)").loops == (("b", "m", "n", "k"), ("b", "m", "n", "h"))


def test_a_loop_over_which_all_that_is_read_is_reduced_is_left_out() -> None:
    """C is complete before E, which k does not concern."""
    assert around("mh.kn").loops == ((*GRID, "k", "n"), (*GRID, "n"))


def test_dead_loops_are_in_none() -> None:
    assert around("mh.nk", "hk") == Nesting(("b", "m"), (("b", "m", "n"), ("b", "m", "n")))
    assert around("mh.nk", "k") == around("mh.kn", "k") != around("hm.kn", "k")
    assert around("mh.kn", "h") == around("hm.kn", "h")


def test_a_split_loop_stands_inside_the_one_over_its_parts() -> None:
    found = around("mh.nk", "k", "n")
    assert found.loops == ((*GRID, "n/", "n"),) * 2 and found.split == "n"
    with pytest.raises(Illegal, match="'k' is not the outermost one"):
        around("mh.nk", split="k")
