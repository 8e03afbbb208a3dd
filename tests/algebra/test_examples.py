"""The chains under examples/, from plain definitions: every way through the space is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mcfuser.algebra.dependence import dependences
from mcfuser.algebra.roll import Refusal
from mcfuser.chain import Chain, from_json
from mcfuser.devices.catalogue import device_named
from mcfuser.space.expression import bind, loop_axes, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.prune import prune, space
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from tests.support.examples import EXAMPLES, ROLLED, document, small

PLANS = 5
HOISTED = {"layer_norm", "layer_norm_projection", "rms_norm_projection", "rms_norm_swiglu"}


def numbers(c: Chain, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    whole = {n: c.tensor(n).dtype in ("bool", "int32") for n in c.inputs}
    return {
        n: rng.integers(0, 2, c.shape(n)) if whole[n] else rng.standard_normal(c.shape(n))
        for n in c.inputs
    }


def pruned(c: Chain, rng: np.random.Generator) -> Iterator[Schedule]:
    """A sample of the candidates that pruning leaves."""
    tables = prune(space(c), device_named("cpu"))[0].tables or ()
    every = [(plan, row) for plan, tiles in tables for row in tiles]
    for i in rng.choice(len(every), min(PLANS, len(every)), replace=False):
        plan, row = every[i]
        yield plan.schedule(dict(zip(plan.axes, (int(t) for t in row), strict=True)))


def ragged(c: Chain, rng: np.random.Generator) -> Iterator[Schedule]:
    """Any expression, and tiles that do not divide their axes."""
    ready = program(c)
    every = [bind(ready.chain, e) for e in tilings(ready.chain)]
    for _ in range(PLANS):
        tiles = {a: int(rng.integers(1, ready.chain.size(a) + 1)) for a in loop_axes(ready.chain)}
        dead = frozenset(a for a, n in tiles.items() if n == ready.chain.size(a))
        yield Plan(ready, every[rng.integers(len(every))], dead).schedule(tiles)


def agrees(c: Chain, schedules: Iterator[Schedule], seed: int) -> None:
    x = numbers(c, seed)
    expected = evaluate(c, x)
    for schedule in schedules:
        found, _ = interpret(schedule, x)
        for name in c.outputs:
            scale = np.abs(expected[name]).max() + 1e-30
            np.testing.assert_allclose(
                found[name] / scale,
                expected[name] / scale,
                rtol=0,
                atol=1e-9,
                err_msg=str(schedule),
            )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_right_whichever_way_it_is_fused(path: Path) -> None:
    sizes = {"b": 2, "g": 3, "m": 32, "n": 64, "k": 32, "h": 16}
    c = small(document(path), sizes)
    rng = np.random.default_rng(1)
    agrees(c, pruned(c, rng), 1)
    c = small(document(path), {"b": 2, "g": 3, "m": 7, "n": 23, "k": 12, "h": 5})
    agrees(c, ragged(c, rng), 1)


@pytest.mark.parametrize("name", sorted(ROLLED))
def test_attention_decodes(name: str) -> None:
    path = next(p for p in EXAMPLES if p.stem == name)
    c = small(document(path), {"b": 2, "g": 3, "m": 1, "n": 64, "k": 16, "h": 16})
    agrees(c, pruned(c, np.random.default_rng(2)), 2)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_dependence_is_hoisted_rolled_or_refused_with_a_sentence(path: Path) -> None:
    plain = from_json(json.loads(document(path)))
    ready = program(plain)
    refused = [r for r in ready.rolls if isinstance(r, Refusal)]
    if path.stem in ROLLED:
        assert len(ready.repairs) == 2
        assert not refused
    if path.stem in HOISTED:
        assert dependences(plain)
        assert not dependences(ready.chain)
    for r in refused:
        assert f"operator '{r.target}'" in r.reason and f"operator '{r.moving}'" in r.reason
        assert f"axis '{r.axis}'" in r.reason
    assert bool(refused) == (path.stem == "entropy")


def test_a_repair_may_itself_be_repaired() -> None:
    """Z is repaired while R moves, and what Z and R were to E and T is, too."""
    path = next(p for p in EXAMPLES if p.stem == "expected_score")
    ready = program(from_json(json.loads(document(path))))
    assert set(ready.repairs) == {
        ("Z", "R", "n"), ("E", "R", "n"), ("E", "Z", "n"), ("T", "R", "n"), ("T", "Z", "n"),
    }  # fmt: skip


def test_the_norms_before_products_need_one_loop_nest() -> None:
    for name in ("layer_norm_projection", "rms_norm_swiglu"):
        path = next(p for p in EXAMPLES if p.stem == name)
        tables = prune(space(from_json(json.loads(document(path)))), device_named("cpu"))[0].tables
        nests = {plan.notation for plan, _ in tables or ()}
        assert all(n.count("k(") <= 1 for n in nests)
        assert any(n.count("k(") == 1 for n in nests)
