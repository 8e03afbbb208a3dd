"""Schedules that would move values among a group's threads, or change a tile in a ring."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import from_json
from mcfuser.expr import Call, Cast, Const, Expr, Index, Read
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.lowering.triton.hopper.movement import MOVED, check_movement
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Compute, Illegal, Loop, Statement
from tests.support.hopper_chains import chain_of
from tests.support.triton_cases import scheduled

EXTENTS = {"b": 2, "m": 256, "n": 128, "k": 32, "h": 32}
TILES = {"b": 1, "m": 128, "n": 32, "k": 32, "h": 32}


def of(name: str, expression: str = "mh.nk", **tiles: int) -> Schedule:
    return scheduled(chain_of(name, EXTENTS, "float16"), expression, {**TILES, **tiles})


def with_body(schedule: Schedule, buffer: str, body: Expr) -> WarpGroups:
    """The groups of a schedule in which a buffer is computed in another way."""

    def changed(s: Statement) -> Statement:
        if isinstance(s, Loop):
            return replace(s, body=tuple(map(changed, s.body)))
        return replace(s, body=body) if isinstance(s, Compute) and s.buffer == buffer else s

    return WarpGroups(replace(schedule, body=tuple(map(changed, schedule.body))), 2)


def body_of(schedule: Schedule, buffer: str) -> Expr:
    every = [*schedule.body]
    while every:
        s = every.pop()
        if isinstance(s, Loop):
            every += s.body
        elif isinstance(s, Compute) and s.buffer == buffer:
            return s.body
    raise AssertionError(buffer)


@pytest.mark.parametrize("name", ["attention", "causal", "cap", "masked", "outer", "mlp", "two"])
def test_tiles_and_vectors_that_lie_alike_do_not_move(name: str) -> None:
    check_movement(WarpGroups(of(name), 2))


def test_a_tile_of_one_number_or_of_rows_alone_has_no_layout() -> None:
    schedule = of("mlp")
    for body in (Const(1.0), Call("mul", (Const(2.0), Const(3.0)))):
        with pytest.raises(Illegal, match=MOVED):
            check_movement(with_body(schedule, "T", body))
    rows = of("outer")
    (vector,) = (x for x in _reads(body_of(rows, "T")) if x.tensor == "a")
    with pytest.raises(Illegal, match=MOVED):
        check_movement(with_body(rows, "T", Call("mul", (vector, Const(2.0)))))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_number_that_is_known_when_the_source_is_written_has_no_layout(batch: int) -> None:
    """The position along an axis is one where the axis has one iteration."""
    c = from_json({
        "axes": {**EXTENTS, "b": batch},
        "tensors": {t: {"shape": list(shape), "dtype": "float16"} for t, shape in
                    {"A": "bmk", "B": "bkn", "D": "bnh", "s": "b"}.items()},
        "operators": [
            "g[b] = exp(s[b]) / (2.0 + erf(s[b]))",
            "S[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]",
            "T[b, m, n] = S[b, m, n] * g[b] + g[b]",
            "E[b, m, h] = sum[n] float16(T[b, m, n]) * D[b, n, h]",
        ],
    })  # fmt: skip
    schedule = scheduled(c, "mh.nk", TILES)
    check_movement(WarpGroups(schedule, 2))
    groups = with_body(schedule, "g", Call("mul", (Index("b"), Const(2.0))))
    if batch == 2:
        check_movement(groups)
    else:
        with pytest.raises(Illegal, match=MOVED):
            check_movement(groups)


def test_an_operand_in_a_ring_is_taken_as_it_was_loaded() -> None:
    schedule = of("mlp")
    left, right = _sides(schedule)
    check_movement(with_body(schedule, "C", Call("mul", (Cast(left, "float16"), right))))
    for other in (Cast(left, "bfloat16"), Cast(Cast(left, "float32"), "float16")):
        with pytest.raises(Illegal, match="'A' is changed before it enters a product"):
            check_movement(with_body(schedule, "C", Call("mul", (other, right))))


def _sides(schedule: Schedule) -> tuple[Expr, Expr]:
    body = body_of(schedule, "C")
    assert isinstance(body, Call)
    left, right = body.args
    return left, right


def _reads(e: Expr) -> list[Read]:
    if isinstance(e, Read):
        return [e]
    args = e.args if isinstance(e, Call) else (e.arg,) if isinstance(e, Cast) else ()
    return [r for x in args for r in _reads(x)]
