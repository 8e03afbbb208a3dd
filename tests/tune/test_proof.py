"""Candidates that nobody measures, proven on small chains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import Chain, from_json
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.expr import Call
from mcfuser.space.plan import Plan
from mcfuser.tune.expected import pruned
from mcfuser.tune.proof import ITERATIONS, TILE, _shrunk, disproof
from mcfuser.tune.tuned import TuneOptions
from tests.support.chains import chain
from tests.support.paths import CHAINS

H200 = CATALOGUE["nvidia/h200"]
EXAMPLES = sorted((CHAINS).glob("*.json"))


def drawn(c: Chain, count: int) -> list[tuple[Plan, dict[str, int]]]:
    found, _ = pruned(c, H200, TuneOptions(), CUDA)
    rng, some = np.random.default_rng(0), []
    for _ in range(count):
        plan, tiles = (found.tables or ())[rng.integers(len(found.tables or ()))]
        row = tiles[rng.integers(len(tiles))]
        some.append((plan, dict(zip(plan.axes, map(int, row), strict=True))))
    return some


@pytest.mark.thorough
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_candidates_of_every_example_are_proven(path: Path) -> None:
    c = from_json(json.loads(path.read_text()))
    for plan, tiles in drawn(c, 2):
        assert disproof(c, plan, tiles, True, 0) is None, plan.notation


@pytest.mark.parametrize("extent", [1, 2, 7, 31, 32, 33, 64, 65, 96, 128, 1000])
@pytest.mark.parametrize("tile", [1, 2, 16, 32, 64, 1024])
def test_small_extents_and_tiles_divide_each_other_as_large_ones_do(extent: int, tile: int) -> None:
    n, t = _shrunk(extent, tile)
    assert 1 <= t <= n <= TILE * ITERATIONS
    assert (t == n) == (tile >= extent)
    if tile < extent:
        assert -(-n // t) == min(-(-extent // tile), ITERATIONS) and t == min(tile, TILE)
        assert t == 1 or (n % t == 0) == (extent % tile == 0)


ROLLED = chain(
    {"m": 64, "n": 4096},
    {"X": "mn", "Y": "mn"},
    ["R[m] = max[n] X[m, n]", "T[m] = max[n] exp(X[m, n] - R[m]) * Y[m, n]"],
)


def test_a_repair_that_loses_the_identity_is_found() -> None:
    """Where nothing was accumulated yet, the lowest number times zero is a maximum like others."""
    plan, tiles = next(
        (p, t) for p, t in drawn(ROLLED, 50) if "n" not in p.dead and p.split is None
    )
    assert disproof(ROLLED, plan, tiles, True, 0) is None
    (roll,) = plan.program.repairs.values()
    assert isinstance(roll.h, Call) and roll.h.op == "select"
    bare = replace(roll, h=roll.h.args[2])
    wrong = replace(plan.program, rolls=(bare,))

    def broken(small: Chain, shifts: bool) -> object:
        from mcfuser.space.program import program

        return replace(program(small, shifts), rolls=(bare,))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcfuser.tune.proof.program", broken)
        found = disproof(ROLLED, replace(plan, program=wrong), tiles, True, 0)
    assert found is not None and "its schedule is wrong where it was interpreted: 'T'" in found


def test_a_chain_that_counts_its_positions_keeps_them() -> None:
    lines = ["A[m] = sum[n] X[m, n] / 768.0", "Y[m, n] = X[m, n] - A[m]",
             "V[m] = sum[n] Y[m, n] * Y[m, n]"]  # fmt: skip
    c = chain({"m": 512, "n": 768}, {"X": "mn"}, lines)
    for plan, tiles in drawn(c, 3):
        assert disproof(c, plan, tiles, True, 0) is None


def test_what_is_fused_otherwise_when_it_is_small_is_not_proven() -> None:
    """No small chain has this program's repairs, so nothing is said of it."""
    plan, tiles = drawn(ROLLED, 1)[0]
    other = replace(plan.program, rolls=())
    found = disproof(ROLLED, replace(plan, program=other), tiles, True, 0)
    assert found == "no small chain is fused as it is, so its schedule is not proven"


@pytest.mark.parametrize("index", ["m + j", "m + j + 2", "2 * m + j", "m - j + 2"])
def test_a_window_of_a_small_chain_has_all_that_is_read(index: str) -> None:
    c = chain({"m": 64, "j": 3, "h": 16}, {"A": (132, "h"), "W": "jh"},
              [f"C[m, h] = sum[j] A[{index}, h] * W[j, h]"])  # fmt: skip
    for plan, tiles in drawn(c, 3):
        assert disproof(c, plan, tiles, True, 0) is None, plan.notation
