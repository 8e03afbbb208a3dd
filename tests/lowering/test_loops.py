"""Loops as Triton runs them: written out, pipelined, and what is inside a block."""

from __future__ import annotations

import numpy as np

from mcfuser.lowering.loops import inner, innermost, lowered_body, peak, pipelined, serial
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan, sizes_of
from mcfuser.space.program import program
from mcfuser.space.statement import Load, Loop, loops, statements
from tests.support.chains import chain, named

SIZES = dict.fromkeys("bmnkhpc", 16)
GEMM = named("gemm", SIZES | {"b": 1})


def plan(said: str, dead: str = "", c=GEMM) -> Plan:
    return Plan(program(c), parse(said), frozenset(dead))


def kinds(p: Plan) -> dict[str, str]:
    return {x.axis: x.kind for x in loops(lowered_body(p))}


def test_a_loop_over_several_tiles_that_a_buffer_keeps_is_written_out() -> None:
    """mnhk keeps E for every h while n turns; registers cannot be chosen by a variable."""
    found = kinds(plan("mnhk"))
    assert found["h"] == "unrolled" and found["n"] == "serial"
    assert kinds(plan("mh.nk"))["n"] == "serial"


def test_the_innermost_loop_that_loads_is_pipelined() -> None:
    body = lowered_body(plan("mh.nk"))
    found = {x.axis: x for x in loops(body)}
    assert pipelined(found["k"]) and not pipelined(found["n"])
    assert not pipelined(found["m"]) and not pipelined(None)


def test_a_loop_that_loads_nothing_is_not_pipelined() -> None:
    assert not pipelined(Loop("n", "serial", ()))


def test_a_block_walks_its_own_loops_and_not_those_of_the_grid() -> None:
    body = lowered_body(plan("mh.nk"))
    outer = next(o for s, o in statements(body) if isinstance(s, Load) and s.read.tensor == "B")
    assert [x.axis for x in inner(outer)] == ["n", "k"]
    found = innermost(outer)
    assert found is not None and found.axis == "k"
    assert innermost(outer[:2]) is None


def test_serial_loops_come_with_those_around_them() -> None:
    found = {x.axis: [o.axis for o in outer] for x, outer in serial(lowered_body(plan("mh.nk")))}
    assert found == {"n": ["m", "h"], "k": ["m", "h", "n"]}


def test_blocks_of_a_causal_loop_are_unequal_and_of_a_full_one_are_not() -> None:
    tiles = np.asarray([[2, 2]])
    lines = ["R[m] = max[n] X[m, n]"]
    full = plan("m.n", c=chain({"m": 32, "n": 32}, {"X": "mn"}, lines))
    causal = plan("m.n", c=chain({"m": 32, "n": 32}, {"X": "mn"}, [f"{lines[0]} where n <= m"]))
    assert peak(full.placed[1], sizes_of(full, tiles))[0] == 1.0
    assert 1.5 < peak(causal.placed[1], sizes_of(causal, tiles))[0] < 2.0
