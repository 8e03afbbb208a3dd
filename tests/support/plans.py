"""Plans with tiles, drawn at random; what the model of CPUs is given of candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.count import calls
from mcfuser.space.expression import bind, tilings
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Floats, Ints, Plan, repeats, sizes_of
from mcfuser.space.program import program
from mcfuser.space.statement import Compute, statements
from tests.support.chains import LINES, named


@st.composite
def candidates(draw: st.DrawFn):
    c = named(draw(st.sampled_from(sorted(LINES))), dict.fromkeys("bmnkhpc", 32))
    of = program(c)
    expression = draw(st.sampled_from(tilings(of.chain)))
    if draw(st.booleans()):
        expression = bind(of.chain, expression)
    plan = Plan(of, expression, frozenset())
    rows = draw(st.lists(st.tuples(*[st.sampled_from([4, 8, 16])] * len(plan.axes)), min_size=1,
                         max_size=4))  # fmt: skip
    return plan, np.asarray(rows, np.int64)


def columns(device: Device, *settings: TensorirKnobs) -> dict[str, np.ndarray[Any, Any]]:
    """Of candidates with these settings, each allowed on the device."""
    table = KnobTable(TensorirKnobs, device)
    return table.columns(np.asarray([table.number(s) for s in settings]))


def at_peak(plan: Plan, tiles: Ints, device: Device) -> dict[str, Floats]:
    """Core seconds of a plan's products, by their tiles, on vectors that are never idle."""
    sizes, found = sizes_of(plan, tiles), {}
    for s, outer in statements(plan.placed[1]):
        if isinstance(s, Compute) and s.operator.product is not None:
            flops = (calls(s.body) + 1) * sizes.positions(s.operator.related)
            found[s.buffer] = repeats(sizes, outer) * flops / device.throughput("float32")
    return {tile: seconds * device.units for tile, seconds in found.items()}
