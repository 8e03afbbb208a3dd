"""A chain under every expression and some tiles, held to what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mcfuser.chain import Chain
from mcfuser.space.expression import bind, loop_axes, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.schedule import Schedule
from tests.support import plain


def plans(c: Chain, most: int = 3) -> Iterator[tuple[Plan, dict[str, int]]]:
    """Every expression, bound to the grid or not, with tiles of 1 to `most` positions."""
    ready = program(c)
    for e in tilings(ready.chain):
        for bound in dict.fromkeys((e, bind(ready.chain, e))):
            for t in range(1, most + 1):
                tiles = {a: min(t, ready.chain.size(a)) for a in loop_axes(ready.chain)}
                dead = frozenset(a for a, n in tiles.items() if n >= ready.chain.size(a))
                yield Plan(ready, bound, dead), tiles


def schedules(c: Chain, most: int = 3) -> Iterator[Schedule]:
    """The schedule of each of these plans."""
    return (plan.schedule(tiles) for plan, tiles in plans(c, most))


def right(c: Chain, x: Mapping[str, np.ndarray]) -> int:
    """Asserts that all of them find what the plain evaluator finds; how many there are."""
    expected, count = plain.plain(c, x), 0
    for schedule in schedules(c):
        found, _ = interpret(schedule, x)
        for name in c.outputs:
            np.testing.assert_allclose(
                found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=str(schedule)
            )
        count += 1
    return count
