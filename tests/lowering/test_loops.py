"""Which loops are written out or pipelined, and what a block runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import attention, gemm
from mcfuser.lowering.loops import (
    around_loop,
    block_body,
    inner,
    innermost,
    kept,
    lowered_body,
    peak,
    pipelined,
    serial,
    written_out,
)
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.plan import Plan, sizes_of
from mcfuser.space.program import program
from mcfuser.space.statement import Compute, Illegal, Load, Loop, loops, statements
from tests.support.chains import chain, depthwise, named
from tests.support.triton_cases import scheduled

EXTENTS = {"m": 128, "n": 128, "k": 64, "h": 64}
CHAIN = gemm(1, *(EXTENTS[a] for a in "mnkh"), "float16")


def several(a: str) -> bool:
    return a in ("m", "n", "h")


def test_a_loop_over_tiles_that_a_buffer_keeps_is_written_out() -> None:
    """`E` keeps every tile along h, between iterations over n."""
    tiles = {"b": 1, "m": 32, "n": 32, "k": 64, "h": 32}
    schedule = scheduled(CHAIN, "m.n(k,h)", tiles)
    buffers = {b.name: b for b in schedule.buffers}
    assert {n: kept(b, several) for n, b in buffers.items() if kept(b, several)} == {"E": ("h",)}
    found = {x.axis: written_out(CHAIN, x, buffers, several) for x in loops(schedule.body)}
    assert found["h"] and not found["n"]
    assert not any(written_out(CHAIN, x, buffers, lambda a: False) for x in loops(schedule.body))


def test_a_loop_beside_a_held_buffer_that_it_does_not_touch_stays_a_loop() -> None:
    tiles = {"b": 1, "m": 32, "n": 32, "k": 64, "h": 32}
    schedule = scheduled(CHAIN, "m.n(k,h)", tiles)
    buffers = {b.name: b for b in schedule.buffers}
    loop = next(x for x in loops(schedule.body) if x.axis == "h")
    loads = tuple(s for s in loop.body if isinstance(s, Load))
    assert loads and not written_out(CHAIN, replace(loop, body=loads), buffers, several)


def test_a_loop_in_parts_must_be_written_out_for_a_held_buffer_alone() -> None:
    tiles = {"b": 1, "m": 32, "n": 32, "k": 64, "h": 32}
    schedule = scheduled(CHAIN, "m.n(k,h)", tiles)
    buffers = {b.name: b for b in schedule.buffers}
    held = next(x for x in loops(schedule.body) if x.axis == "h")
    assert written_out(CHAIN, replace(held, kind="split"), buffers, several)
    c = depthwise()
    windowed = scheduled(c, bind(c, tilings(c)[0]), {"m": 4, "i": 20, "k": 1, "s": 1})
    buffers = {b.name: b for b in windowed.buffers}
    walk = next(x for x in loops(windowed.body) if x.axis == "k")
    assert written_out(c, walk, buffers, lambda a: False)
    assert not written_out(c, replace(walk, kind="split"), buffers, lambda a: False)


def test_loops_along_a_window_are_written_out() -> None:
    c = depthwise()
    plan = Plan(program(c), bind(c, tilings(c)[0]), frozenset())
    kinds = {x.axis: x.kind for x in loops(lowered_body(plan))}
    assert {a: kinds[a] for a in "ks"} == {"k": "unrolled", "s": "unrolled"}
    norm = named("layer_norm", {"m": 512, "n": 256})
    plan = Plan(program(norm), bind(norm, tilings(norm)[0]), frozenset())
    assert {x.kind for x in loops(lowered_body(plan))} == {"grid", "serial"}


def test_the_innermost_loop_that_loads_is_pipelined() -> None:
    plan = Plan(program(CHAIN), parse("mh.nk"), frozenset())
    body = lowered_body(plan)
    found = [x.axis for x in loops(body) if x.kind == "serial" and pipelined(x)]
    assert found == ["k"]
    outer = next(o for s, o in statements(body) if isinstance(s, Load) and "k" in
                 {a for i in s.read.indices for a in i.axes})  # fmt: skip
    loop = innermost(outer)
    assert loop is not None and pipelined(loop)
    assert not pipelined(None)
    assert not pipelined(replace(loop, body=tuple(s for s in loop.body if isinstance(s, Compute))))


def test_a_block_runs_what_the_grid_s_loops_enclose() -> None:
    tiles = {"b": 1, "m": 32, "n": 32, "k": 64, "h": 64}
    schedule = scheduled(attention(2, 128, 128, 64, 64, "float16"), "mh.nk", tiles)
    body = block_body(schedule.body)
    assert not any(x.kind == "grid" for x in loops(body))
    found = around_loop(schedule.body)
    assert found is not None
    before, loop, after = found
    assert (*before, loop, *after) == body and loop.axis == "n"
    assert around_loop((*body, loop)) is None
    assert around_loop(before) is None
    beside = Loop("m", "grid", (*before, Loop("b", "grid", body)))
    with pytest.raises(Illegal, match="outside the loops that form the grid"):
        block_body((beside,))


SIZES = dict.fromkeys("bmnkhpc", 16)
GEMM = named("gemm", SIZES | {"b": 1})


def plan(said: str, dead: str = "", c=GEMM) -> Plan:
    return Plan(program(c), parse(said), frozenset(dead))


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
