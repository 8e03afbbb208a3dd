"""Maps that micro-kernels may apply to what they accumulate."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.lowering.tensorir.epilogue import MOST, applies, epilogues
from mcfuser.space.expression import parse
from mcfuser.space.statement import Compute, statements
from tests.support.pictures import Windows, padded
from tests.support.schedules import schedules

WHOLE = {"m": 16, "n": 32, "k": 24}


def product(*lines: str, n: int = 64, **tensors: list[str]) -> Chain:
    """C = A B, and what other lines make of it."""
    shapes = {"A": ["m", "k"], "B": ["k", "n"], **tensors}
    return from_json({
        "axes": {"m": 64, "n": n, "k": 24},
        "tensors": {name: {"shape": shape} for name, shape in shapes.items()},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]", *lines],
    })  # fmt: skip


def found(chain: Chain, expression: str = "mn.k", **tiles: int) -> dict[str, str]:
    """The map of each product's tile, by the tensors' names."""
    schedule = schedules(chain, parse(expression), {**WHOLE, **tiles})
    named = {b.name: b for b in schedule.buffers}
    every = epilogues(schedule.chain, named, schedule.body)
    return {named[tile].tensor: s.operator.out for tile, s in every.items()}


def test_a_few_steps_of_each_element_are_applied() -> None:
    assert found(product("E[m, n] = max(C[m, n], 0.0)")) == {"C": "E"}
    bias = product("E[m, n] = max(C[m, n] + D[n] + R[m, n], 0.0)", D=["n"], R=["m", "n"])
    assert found(bias) == {"C": "E"}
    assert found(product("E[n, m] = C[m, n] * 2.0")) == {"C": "E"}


@pytest.mark.parametrize("lines", [
    ["E[m, n] = exp(C[m, n])"],
    ["E[m, n] = " + " + ".join(["C[m, n]"] * (MOST + 2))],
    ["E[m, n] = max(C[m, n], 0.0)", "F[m, n] = C[m, n] * 2.0"],
    ["E[m, n] = max(C[m, n], 0.0)", "F[m] = sum[n] C[m, n]"],
    ["E[m, n] = C[m, n] * 2.0 where n <= m"],
    ["E[m] = sum[n] C[m, n]"],
    ["F[m] = max[n] C[m, n]", "E[m, n] = C[m, n] - F[m]"],
])  # fmt: skip
def test_what_else_reads_a_product_finds_its_tile(lines: list[str]) -> None:
    """Or what would take many steps for each accumulator, or is not done everywhere."""
    assert found(product(*lines)) == {}


def test_all_of_a_product_must_be_summed() -> None:
    chain = product("E[m, n] = max(C[m, n], 0.0)")
    assert found(chain, k=24) == {"C": "E"}
    assert found(chain, k=8) == {}


def test_what_a_map_reads_must_be_there() -> None:
    """Sums that are made after the product are not, and those that are made before it are."""
    sums = "S[m] = sum[k] A[m, k] * A[m, k]"
    assert found(product(sums, "E[m, n] = C[m, n] * S[m]")) == {}
    early = from_json({
        "axes": {"m": 64, "n": 64, "k": 24},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}},
        "operators": [sums, "C[m, n] = sum[k] A[m, k] * B[k, n]", "E[m, n] = C[m, n] * S[m]"],
    })  # fmt: skip
    assert found(early) == {"C": "E"}


def test_convolutions_have_them_as_well() -> None:
    lines = Windows(14, 3, before=1, after=1)
    chain = padded(lines, lines, columns=64)
    tiles = {a.name: chain.size(a.name) for a in chain.axes} | {"m": 7, "n": 16}
    assert found(chain, "mn.ikst", **tiles) == {"C": "E"}


@pytest.mark.parametrize(("line", "n", "tile", "width", "applied"), [
    ("E[m, n] = C[m, n] * 2.0", 64, 32, 32, True),
    ("E[m, n] = C[m, n] * 2.0", 64, 64, 16, True),
    ("E[m, n] = C[m, n] * 2.0", 70, 70, 16, False),
    ("E[m, n] = C[m, n] * 2.0", 64, 24, 16, False),
    ("E[n, m] = C[m, n] * 2.0", 64, 32, 32, False),
    ("X[m, n] = C[m, n] * 2.0", 70, 70, 16, True),
    ("X[m, n] = C[m, n] * 2.0", 64, 24, 16, True),
    ("X[m, n] = C[m, n] + D[n]", 64, 32, 32, True),
    ("X[m, n] = C[m, n] + D[n]", 70, 70, 16, False),
    ("X[n, m] = C[m, n] * 2.0", 64, 32, 32, False),
])  # fmt: skip
def test_columns_past_the_extent_are_neither_read_nor_stored(
    line: str, n: int, tile: int, width: int, applied: bool
) -> None:
    """X is read again, so that it stays in scratch, whose rows have room for whole panels."""
    tensors = {"D": ["n"]} if "D" in line else {}
    place = line[1 : line.index("]") + 1]
    chain = product(line, *([f"Y[m] = max[n] X{place}"] if line[0] == "X" else []), n=n, **tensors)
    schedule = schedules(chain, parse("m.nk"), {"m": 16, "n": tile, "k": 24})
    (ending,) = (
        s for s, _ in statements(schedule.body)
        if isinstance(s, Compute) and s.operator.out == line[0]
    )  # fmt: skip
    buffers = {b.name: b for b in schedule.buffers}
    sizes = np.asarray([tile]), np.asarray([width])
    assert applies(schedule.chain, buffers, ending, "n", *sizes).tolist() == [applied]
