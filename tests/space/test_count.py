"""Exact traffic and flops, by hand for small schedules; `test_oracle` holds them to the interpreter
on random ones."""

from __future__ import annotations

from mcfuser.chain import gemm
from mcfuser.expr import parse
from mcfuser.space.count import calls, count
from mcfuser.space.expression import parse as expression
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.schedule import Schedule
from tests.support.chains import chain


def schedule(c, said: str, tiles: dict[str, int], split: str | None = None, parts: int = 1):
    ready = program(c)
    names = Plan(ready, expression(said), frozenset()).axes
    dead = frozenset(a for a in names if tiles[a] >= ready.chain.size(a))
    plan = Plan(ready, expression(said), dead, split, parts)
    found: Schedule = plan.schedule(tiles)
    return found


LINEAR = chain({"m": 8, "n": 6, "k": 4}, {"A": "mk", "B": "kn"},
               ["C[m, n] = sum[k] A[m, k] * B[k, n]"])  # fmt: skip


def test_each_block_loads_its_operands_once_and_stores_its_tile() -> None:
    found = count(schedule(LINEAR, "mn.k", {"m": 4, "n": 6, "k": 4}))
    assert dict(found.loaded) == {"A": 8 * 4, "B": 2 * 4 * 6}
    assert dict(found.stored) == {"C": 8 * 6}
    assert found.flops == 2 * 8 * 6 * 4
    assert found.padded == 0 and not found.shared and not found.gathered


def test_tiles_that_reach_past_an_extent_are_padded_and_nothing_more_is_moved() -> None:
    found = count(schedule(LINEAR, "mn.k", {"m": 5, "n": 6, "k": 4}))
    assert dict(found.loaded) == {"A": 8 * 4, "B": 2 * 4 * 6}
    assert dict(found.stored) == {"C": 8 * 6}
    assert found.padded == 2 * 4 + 2 * 6  # two rows of A and of C


def test_bytes_are_those_of_each_tensors_type() -> None:
    wide = schedule(LINEAR, "mn.k", {"m": 8, "n": 6, "k": 4})
    half = gemm(1, 8, 6, 4, 4, "float16")
    assert count(wide).nbytes(wide) == 4 * (8 * 4 + 4 * 6 + 8 * 6)
    small = schedule(half, "mh.nk", dict.fromkeys("bmnkh", 8))
    found = count(small)
    assert found.nbytes(small) == 2 * (sum(found.loaded.values()) + sum(found.stored.values()))


def test_parts_share_what_they_have_and_combining_gathers_all_of_it() -> None:
    tiles = {"m": 8, "n": 6, "k": 1}
    found = count(schedule(LINEAR, "mn.k", tiles, "k", 2))
    assert dict(found.shared) == {"C": 2 * 8 * 6} == dict(found.gathered)
    whole = count(schedule(LINEAR, "mn.k", tiles))
    assert dict(found.loaded) == dict(whole.loaded)
    assert found.flops == whole.flops + 2 * 8 * 6  # an addition for each part


def test_calls_are_the_operations_of_an_expression() -> None:
    assert calls(parse("A[m] * B[m] + 1.0")) == 2
    assert calls(parse("exp(A[m])")) == 1
    assert calls(parse("A[m]")) == 0
