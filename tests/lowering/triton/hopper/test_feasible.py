"""Which candidates warp groups can compute: facts agree with the generator."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.codegen.triton import generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.errors import ChainError
from mcfuser.lowering.triton.hopper.feasible import Tiled, divisible
from mcfuser.lowering.triton.hopper.groups import COUNTS
from mcfuser.lowering.triton.instructions import ROWS
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.plan import Ints, Plan
from mcfuser.space.prune import distinct, prune, space
from mcfuser.space.statement import Illegal
from tests.support.examples import EXAMPLES
from tests.support.hopper_chains import LINES, chain_of
from workloads import LANDSCAPES

H200 = CATALOGUE["nvidia/h200"]
LARGE = {"b": 16, "g": 4, "i": 16, "m": 2048, "n": 2048, "k": 64, "h": 64}
GROUPS = TritonKnobs(tma=True, groups=True)
DRAWN = 2
"""Candidates of a plan that are generated."""


def chains() -> Iterator[tuple[str, Chain]]:
    yield from [*LANDSCAPES.items()][::6]
    for path in EXAMPLES:
        yield path.stem, from_json(json.loads(path.read_text()))
    for name in LINES:
        yield f"hopper {name}", chain_of(name, LARGE, "float16")
    ragged = {**LARGE, "m": 577, "n": 577, "k": 80, "h": 80}
    yield "ragged attention", chain_of("attention", ragged, "float16")
    yield "rows of 192", chain_of("attention", {**LARGE, "m": 384}, "float16")


CHAINS = dict(chains())


def plans(chain: Chain) -> Iterator[tuple[Plan, Ints]]:
    """Plans of a chain's pruned space, with tiles whose rows may be those of groups."""
    try:
        pruned, _ = prune(space(chain), H200)
    except ChainError:
        return
    for plan, tiles in distinct(pruned).tables or ():
        some = np.isin(tiles, [n * ROWS for n in COUNTS]).any(axis=1)
        if some.any():
            yield plan, tiles[some]


def generates(plan: Plan, tile: Ints) -> bool:
    schedule = plan.schedule(dict(zip(plan.axes, tile.tolist(), strict=True)))
    try:
        generate(schedule, "kernel", GROUPS)
    except Illegal:
        return False
    return True


@pytest.mark.thorough
def test_no_candidate_that_generates_is_refused_and_few_others_are_accepted() -> None:
    rng, accepted, generated = np.random.default_rng(0), 0, 0
    for name, chain in CHAINS.items():
        for plan, tiles in plans(chain):
            drawn = tiles[rng.permutation(len(tiles))[:DRAWN]]
            for tile, fits in zip(drawn, divisible(plan, drawn), strict=True):
                made = generates(plan, tile)
                assert fits or not made, f"{name}: {plan.notation} {tile}"
                accepted, generated = accepted + fits, generated + made
    assert generated > 100
    assert accepted <= 1.01 * generated


def test_a_candidate_s_verdict_does_not_depend_on_the_others() -> None:
    chain = CHAINS["ragged attention"]
    mixed = 0
    for plan, tiles in plans(chain):
        together = divisible(plan, tiles)
        some = np.random.default_rng(1).permutation(len(tiles))[:20]
        alone = [bool(divisible(plan, tiles[i : i + 1])[0]) for i in some]
        assert together[some].tolist() == alone
        mixed += len({*alone}) == 2
    assert mixed


def test_candidates_of_one_kind_differ_in_sizes_alone() -> None:
    plan, tiles = max(plans(CHAINS["ragged attention"]), key=lambda table: len(table[1]))
    tiled = Tiled(plan, tiles)
    every = list(tiled.kinds())
    assert len(every) > 1
    numbers = np.concatenate(every).tolist()
    assert len(numbers) == len({*numbers}) <= len(tiles)
    for which in every:
        for i, a in enumerate(plan.axes):
            assert len({*(tiles[which, i] >= plan.program.chain.size(a)).tolist()}) == 1


@pytest.mark.parametrize(("tile", "fits"), [(128, True), (192, True), (64, False), (320, False)])
def test_rows_are_those_of_two_to_four_groups(tile: int, fits: bool) -> None:
    plan, _ = next((p, t) for p, t in plans(CHAINS["rows of 192"])
                   if str(p.expression) == "mh.nk" and p.dead == {"k", "h"})  # fmt: skip
    tiles = {"m": tile, "n": 32, "k": 64, "h": 64}
    rows = np.asarray([[tiles[a] for a in plan.axes]])
    assert divisible(plan, rows).tolist() == [fits]
    assert generates(plan, rows[0]) == fits


def test_an_axis_of_one_lane_is_of_another_kind_than_one_of_two() -> None:
    """Candidates of one kind are judged by the first of them; rows along two axes divide
    differently from rows along one."""
    plan, tiles = next(plans(chain_of("grouped", LARGE, "float16")))
    heads, rows = plan.axes.index("g"), plan.axes.index("m")
    one = tiles[:1].copy()
    one[0, heads], one[0, rows] = 1, 2 * ROWS
    two = one.copy()
    two[0, heads] = 2
    kinds = Tiled(plan, np.concatenate([one, two])).kinds()
    assert sorted(which.tolist() for which in kinds) == [[0], [1]]
