"""What a matrix unit makes of a product: the same facts for candidates and for one schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mcfuser.chain import attention, from_json, gemm
from mcfuser.codegen.tensorir import generate
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.matrix import AMX, ORDER, multiplies, pairs
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.statement import Illegal

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 512)
UNIT = replace(CPU, matrix=AMX, peak=(*CPU.peak, ("matrix", 2e12)))


def test_products_of_pieces_are_those_that_a_float32_can_tell() -> None:
    assert set(pairs(3, 3)) == {(i, j) for i in range(3) for j in range(3) if i + j < 3}
    assert set(pairs(2, 2)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert pairs(1, 1) == ((0, 0),)
    assert len(pairs(1, 3)) == len(pairs(3, 1)) == 3


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("right", [1, 2, 3])
def test_neighbours_share_an_operand_and_the_largest_is_last(left: int, right: int) -> None:
    found = pairs(left, right)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(found))
    assert found[-1] == ORDER[-1] == (0, 0)


def test_only_a_device_that_has_the_unit_is_asked_to_use_it() -> None:
    assert not any(s.matrix for s in KnobTable(TensorirKnobs, CPU).settings)
    used = {replace(s, neighbours=1) for s in KnobTable(TensorirKnobs, UNIT).settings if s.matrix}
    assert used == {TensorirKnobs(8, 2, 16, matrix=True)}
    assert KnobTable(TensorirKnobs, UNIT).text != KnobTable(TensorirKnobs, CPU).text


TRANSPOSED = {
    "axes": {"m": 64, "n": 64, "k": 8, "h": 48},
    "tensors": {"A": {"shape": ["m", "k", "h"]}, "B": {"shape": ["k", "h", "n"]}},
    "operators": ["C[n, m] = sum[k, h] A[m, k, h] * B[k, h, n]"],
}


@pytest.mark.parametrize(
    ("chain", "expression"),
    [
        (gemm(1, 64, 64, 64, 64, "float32"), "mh.nk"),
        (gemm(1, 100, 70, 40, 48, "float32"), "mn(k,h)"),
        (attention(2, 100, 70, 64, 64, "float32"), "mh.nk"),
        (from_json(TRANSPOSED), "mnkh"),
    ],
)
def test_the_knob_applies_where_the_generator_uses_the_unit(chain, expression: str) -> None:
    made, parsed, seen = program(chain), parse(expression), set()
    for sizes in ((64, 64, 64, 64), (16, 64, 8, 16), (4, 64, 64, 64), (8, 16, 16, 8),
                  (64, 8, 64, 4), (64, 3, 7, 48)):  # fmt: skip
        plan = Plan(made, parsed, frozenset())
        sizes = tuple(min(n, chain.size(a)) for a, n in zip(plan.axes, sizes, strict=True))
        dead = {a for a, n in zip(plan.axes, sizes, strict=True) if n >= chain.size(a)}
        plan = replace(plan, dead=frozenset(dead))
        applies = bool(multiplies(plan, np.asarray([sizes], np.int64), UNIT)[0])
        schedule = plan.schedule(dict(zip(plan.axes, sizes, strict=True)))
        try:
            text = generate(schedule, "kernel", TensorirKnobs(8, 2, 16, matrix=True)).text
        except Illegal:
            continue
        assert ("tdpbf16ps" in text) == applies, sizes
        seen.add(applies)
    assert seen == {True, False}
