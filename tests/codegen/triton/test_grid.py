"""The grid: every block has a place of its own, long blocks start first, near ones together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

import pytest

from mcfuser.chain import Chain
from mcfuser.codegen.triton import generate, grid
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.expression import parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.chains import chain


def masked(heads: int, groups: int, domain: str, m: int = 64, n: int = 64) -> Chain:
    lines = [
        "S[b, g, m, n] = sum[k] Q[b, g, m, k] * K[b, n, k]",
        f"R[b, g, m] = max[n] S[b, g, m, n]{domain}",
        "P[b, g, m, n] = exp(S[b, g, m, n] - R[b, g, m])",
        f"Z[b, g, m] = sum[n] P[b, g, m, n]{domain}",
        f"U[b, g, m, h] = sum[n] P[b, g, m, n] * V[b, n, h]{domain}",
        "O[b, g, m, h] = U[b, g, m, h] / (Z[b, g, m] + 1.0)",
    ]
    axes = {"b": heads, "g": groups, "m": m, "n": n, "k": 16, "h": 16}
    return chain(axes, {"Q": "bgmk", "K": "bnk", "V": "bnh"}, lines)


def places(c: Chain, m: int = 16) -> list[Mapping[str, int]]:
    """Where each block works, in the order in which they start."""
    plan = Plan(program(c), parse("gmh.nk"), frozenset("hk"))
    schedule = plan.schedule({"g": 1, "m": m, "n": 16, "k": 16, "h": 16})
    text = generate(schedule, "kernel", TritonKnobs()).text
    lines = re.findall(r"^    (\w+) = (.*\bpid\b.*)$", text, re.MULTILINE)
    count = c.size("b") * c.size("g") * (c.size("m") // m)
    found = []
    for pid in range(count):
        at: dict[str, int] = {"pid": pid}
        for name, words in lines:
            at[name] = eval(words, {}, at)
        found.append(at)
    return found


CAUSAL = " where n <= m"
HEAD = 2 * 64 * 16 * 4
"""Bytes of a head's keys and values."""


@pytest.mark.parametrize("domain", ["", CAUSAL, " where n <= m and m < n + 20"])
@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("cached", [1, 2 * HEAD, 4 * HEAD, 1 << 30])
def test_every_block_has_a_place_of_its_own(
    monkeypatch: pytest.MonkeyPatch, domain: str, heads: int, groups: int, cached: int
) -> None:
    monkeypatch.setattr(grid, "CACHED", cached)
    found = places(masked(heads, groups, domain))
    seen = {(p.get("b", 0), p.get("g", 0), p["m_start"]) for p in found}
    assert seen == set(product(range(heads), range(groups), range(0, 64, 16)))
    assert len(found) == len(seen)


def test_long_blocks_start_first_of_as_many_heads_as_share_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = masked(6, 2, CAUSAL)
    for heads_at_once, cached in ((6, 1 << 30), (3, 4 * HEAD), (2, 2 * HEAD), (1, 1)):
        monkeypatch.setattr(grid, "CACHED", cached)
        found, some = places(c), heads_at_once * 2 * 4
        for start in range(0, len(found), some):
            together = found[start : start + some]
            assert len({p["b"] for p in together}) == heads_at_once
            rows = [p["m_start"] for p in together]
            assert rows == sorted(rows, reverse=True)


def test_without_bounds_rows_of_a_head_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "CACHED", 1)
    found = places(masked(3, 1, ""))
    assert [p["m_start"] for p in found] == [0, 16, 32, 48] * 3
