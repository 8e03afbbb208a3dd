"""Schedules of convolutions over padded pictures, drawn at random."""

from __future__ import annotations

import random

from mcfuser.chain import Chain, rows_merged
from mcfuser.codegen.tensorir import generate
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import bind, tilings
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.pictures import Windows, drawn_windows, padded
from tests.support.schedules import schedules


def drawn_chain(rng: random.Random) -> Chain:
    if rng.random() < 0.3:
        dtype, value = rng.choice(("float32", "float16")), rng.choice((0.0, -3.5, -65504.0))
        down, across = drawn_windows(rng), drawn_windows(rng)
        return padded(down, across, 0, 3, 2, dtype, value, rng.random() < 0.7)
    if rng.random() < 0.5:
        down, across = (Windows(rng.choice((5, 8, 14)), 3, before=rng.choice((0, 1)), after=1)
                        for _ in range(2))  # fmt: skip
        return padded(down, across, rng.choice((5, 16, 24)), 3, rng.choice((1, 2)))
    columns = rng.choice((0, 5, 16, 24))
    return padded(drawn_windows(rng), drawn_windows(rng), columns, 3, rng.choice((1, 2)))


def drawn(rng: random.Random) -> tuple[Chain, Schedule, TensorirKnobs]:
    """A chain, with a schedule of it or of the chain with merged rows."""
    while True:
        chain = drawn_chain(rng)
        one = rows_merged(chain) if rng.random() < 0.5 else chain
        tiles = {a.name: rng.choice((1, 2, 3, 4, 7, 8, 14, 16, 28, 64)) for a in one.axes}
        if rng.random() < 0.5:
            tiles |= dict.fromkeys("st", 64)
        expression = rng.choice(tilings(one))
        expression = expression if rng.random() < 0.2 else bind(one, expression)
        winograd, neighbours = rng.choice((0, 2, 4)), rng.choice((1, 2, 16))
        knobs = TensorirKnobs(6, 2, 8, winograd=winograd, neighbours=neighbours)
        try:
            schedule = schedules(one, expression, tiles)
            generate(schedule, "kernel", knobs)
        except Illegal:
            continue
        return chain, schedule, knobs
