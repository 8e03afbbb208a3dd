"""Attention over float16 inputs as large as they come: scores of 1e9, and nothing overflows."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain
from mcfuser.space.expression import loop_axes, parse
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from tests.support.examples import EXAMPLES, ROLLED, document, small
from tests.support.tensorir_agree import WIDE, error, run

SIZES = {"b": 2, "g": 2, "m": 40, "n": 80, "k": 32, "h": 32}


def extreme(c: Chain, seed: int) -> dict[str, np.ndarray]:
    """Values around +-1e4, a tenth of it apart."""
    rng = np.random.default_rng(seed)
    found = {}
    for n in c.inputs:
        dtype, shape = c.tensor(n).dtype, c.shape(n)
        far = rng.choice([-1e4, 1e4], shape) * rng.uniform(0.9, 1.1, shape)
        found[n] = (far if dtype == "float16" else rng.integers(0, 2, shape)).astype(dtype)
    return found


WHOLE = ("attention", "masked_attention", "sink_attention")
"""Nothing is rolled where an axis is one tile, so a few tell of it."""


@pytest.mark.parametrize(
    ("name", "tile"), [*((name, 16) for name in sorted(ROLLED)), *((name, 80) for name in WHOLE)]
)
def test_large_halves_do_not_overflow(name: str, tile: int) -> None:
    path = next(p for p in EXAMPLES if p.stem == name)
    c = small(document(path), SIZES)
    x = extreme(c, 3)
    ready = program(c)
    tiles = {"m": min(16, c.size("m")), "n": tile, "k": 32, "h": 32}
    tiles |= {a: 1 for a in loop_axes(ready.chain) if a not in tiles}
    dead = frozenset(a for a, n in tiles.items() if n >= ready.chain.size(a))
    grid = "".join(a for a in loop_axes(ready.chain) if a not in "nk")
    schedule = Plan(ready, parse(f"{grid}.nk"), dead).schedule(tiles)
    found = run(schedule, c, WIDE, x)
    assert np.isfinite(found["O"]).all()
    assert np.abs(found["O"]).max() > 1e3
    assert error(found, evaluate(c, x)) < 1e-2
