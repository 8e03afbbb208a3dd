"""Deferred products, whatever the order in which an iteration's statements stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.expr import parse, text
from mcfuser.lowering.deferred import deferred, factor, only_scaled
from mcfuser.lowering.triton.planned import planned
from mcfuser.lowering.triton.products import products
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.statement import Compute, Loop, Repair, loops
from tests.support.hopper_chains import chain_of
from tests.support.triton_cases import scheduled

EXTENTS = {"b": 2, "m": 128, "n": 128, "k": 32, "h": 32}
TILES = {"b": 1, "m": 128, "n": 32, "k": 32, "h": 32}


def chain(operators: list[str], tensors: dict[str, str]) -> Chain:
    """A chain over m, n, k and h in half precision."""
    return from_json({
        "name": "chain",
        "axes": {a: EXTENTS[a] for a in "mnkh"},
        "tensors": {t: {"shape": list(s), "dtype": "float16"} for t, s in tensors.items()},
        "operators": operators,
    })  # fmt: skip


def found(c: Chain, expression: str = "mh.nk", turned: tuple[str, ...] = ()) -> list[str]:
    """The deferred products of the loop over n; the statements that compute `turned` first."""
    schedule = scheduled(c, expression, TILES)
    loop = next(x for x in loops(schedule.body) if x.axis == "n")
    first = [s for s in loop.body if isinstance(s, Compute) and s.buffer in turned]
    body = (*first, *(s for s in loop.body if s not in first))
    buffers = {b.name: b for b in schedule.buffers}
    dots = products(schedule.chain, buffers, schedule.body)
    return [s.buffer for s in deferred(body, "n", dots)]


@pytest.mark.parametrize("name", ["attention", "causal", "cap"])
def test_the_second_product_of_attention_is_deferred(name: str) -> None:
    assert len(found(chain_of(name, EXTENTS, "float16"))) == 1


THREE = chain(
    [
        "S[m, n] = sum[k] A[m, k] * B[k, n]",
        "U[m, h] = sum[n] float16(S[m, n]) * D[n, h]",
        "T[m, n] = sum[k] A[m, k] * C[k, n]",
        "W[m, h] = sum[n] float16(T[m, n]) * D[n, h]",
        "Y[m, h] = U[m, h] + W[m, h]",
    ],
    {"A": "mk", "B": "kn", "C": "kn", "D": "nh"},
)


@pytest.mark.parametrize("turned", [(), ("U",), ("W", "U"), ("T", "S")])
def test_the_order_of_statements_does_not_matter(turned: tuple[str, ...]) -> None:
    """Between other products, before all of them, or after."""
    assert {*found(THREE, turned=turned)} == {"U", "W"}


def test_what_the_iteration_reads_is_not_deferred() -> None:
    assert found(chain_of("below", EXTENTS, "float16")) == []
    assert found(chain_of("gated", EXTENTS, "float16"), "mn.k") == []


def test_products_of_loaded_operands_are_not_deferred() -> None:
    c = chain(["S[m, h] = sum[n] A[m, n] * D[n, h]"], {"A": "mn", "D": "nh"})
    assert found(c, "mh.n") == []


def test_a_plan_defers_where_one_of_its_loops_does() -> None:
    def plan(expression: str, dead: str, c: Chain) -> Plan:
        schedule = scheduled(c, expression, TILES)
        return Plan(program(c), schedule.expression, frozenset(dead))

    attention = chain_of("attention", EXTENTS, "float16")
    assert planned(plan("mh.nk", "mkh", attention)).defers
    assert not planned(plan("mh.nk", "mnkh", attention)).defers, "there is no loop"


def test_a_repair_scales_or_does_not() -> None:
    schedule = scheduled(chain_of("attention", EXTENTS, "float16"), "mh.nk", TILES)
    loop = next(x for x in loops(schedule.body) if x.axis == "n")
    assert isinstance(loop, Loop)
    repairs = [s for s in loop.body if isinstance(s, Repair)]
    assert repairs and all(factor(s) is not None for s in repairs)
    (product,) = (s for s in loop.body if isinstance(s, Compute) and s.buffer == repairs[0].buffer)
    assert only_scaled(loop.body, product)
    other = replace(repairs[0], h=repairs[0].h.args[0])  # type: ignore[union-attr]
    assert factor(other) is None
    assert not only_scaled((product, other), product)


@pytest.mark.parametrize(
    ("h", "by"),
    [
        ("U[m, h] * c[m]", "c[m]"),
        ("exp(c[m]) * U[m, h]", "exp(c[m])"),
        ("U[m, h] * U[m, h]", None),
        ("U[m, h] * exp(U[m, h])", None),
        ("c[m] * d[m]", None),
        ("U[m, h] + c[m]", None),
    ],
)
def test_the_factor_of_a_repair(h: str, by: str | None) -> None:
    found = factor(Repair("U", "r_old", "r", parse(h)))
    assert (found and text(found)) == by
