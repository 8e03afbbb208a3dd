"""Which loops are written out or pipelined, and what a block runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import attention, gemm
from mcfuser.lowering.loops import (
    around_loop,
    block_body,
    innermost,
    kept,
    lowered_body,
    pipelined,
    written_out,
)
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.statement import Compute, Illegal, Load, Loop, loops, statements
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
    found = {x.axis: written_out(x, buffers, several) for x in loops(schedule.body)}
    assert found["h"] and not found["n"]
    assert not any(written_out(x, buffers, lambda a: False) for x in loops(schedule.body))


def test_a_loop_beside_a_kept_buffer_that_it_does_not_touch_stays_a_loop() -> None:
    tiles = {"b": 1, "m": 32, "n": 32, "k": 64, "h": 32}
    schedule = scheduled(CHAIN, "m.n(k,h)", tiles)
    buffers = {b.name: b for b in schedule.buffers}
    loop = next(x for x in loops(schedule.body) if x.axis == "h")
    loads = tuple(s for s in loop.body if isinstance(s, Load))
    assert loads and not written_out(replace(loop, body=loads), buffers, several)


def test_the_innermost_loop_that_loads_is_pipelined() -> None:
    plan = Plan(program(CHAIN), parse("mh.nk"), frozenset())
    body = lowered_body(plan)
    serial = [x for x in loops(body) if x.kind == "serial"]
    found = [x.axis for x in serial if pipelined(x)]
    assert found == ["k"]
    outer = next(o for s, o in statements(body) if isinstance(s, Load) and "k" in
                 {a for i in s.read.indices for a in i.axes})  # fmt: skip
    inner = innermost(outer)
    assert inner is not None and pipelined(inner)
    assert not pipelined(None)
    assert not pipelined(
        replace(inner, body=tuple(s for s in inner.body if isinstance(s, Compute)))
    )


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
    with pytest.raises(Illegal, match="beside the loops that form the grid"):
        block_body((beside,))
