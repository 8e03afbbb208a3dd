"""Right operands in panels: each layout that a tensor may have, whole tiles and the last one."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, attention, from_json
from mcfuser.codegen.tensorir import generate
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import parse
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from tests.support.pairs import paired
from tests.support.schedules import random_inputs, schedules
from tests.support.tensorir_agree import WIDE, drawn_arrays, error, run

EXTENTS = {"b": 2, "m": 20, "n": 70, "k": 24, "h": 5}


def product(strides: list[int], dtype: str = "float32", extents: dict[str, int] = EXTENTS) -> Chain:
    """C = sum A B, whose B is [b, k, h, n] with these strides, k and h being its depth."""
    tensors = {
        "A": {"shape": ["b", "m", "k", "h"]},
        "B": {"shape": ["b", "k", "h", "n"], "strides": strides, "dtype": dtype},
    }
    lines = ["C[b, m, n] = sum[k, h] A[b, m, k, h] * float32(B[b, k, h, n])"]
    return from_json({"axes": extents, "tensors": tensors, "operators": lines})


def scheduled(chain: Chain, **tiles: int) -> Schedule:
    return schedules(chain, parse("mn.kh"), {"m": 16, "n": 70, "k": 24, "h": 5, **tiles})


@paired(
    strides=[
        [10000, 400, 80, 1], [10000, 1, 30, 150], [10000, 5, 1, 130], [10000, 7, 200, 1500],
    ],
    n=[32, 48, 70, 80],
    dtype=["float32", "float16"],
)  # fmt: skip
def test_panels_hold_what_the_tensor_does(strides: list[int], n: int, dtype: str) -> None:
    """Neighbours in memory lie along the columns, along either axis of the depth, or along none."""
    chain = product(strides, dtype)
    flat, known = drawn_arrays(chain)
    flat["B"][np.isnan(flat["B"])] = 0
    found = run(scheduled(chain, n=n, k=16, h=3), chain, WIDE, flat)
    assert error(found, evaluate(chain, known)) < (1e-5 if dtype == "float32" else 2e-3)


def test_elements_are_copied_along_what_lies_side_by_side() -> None:
    def copies(strides: list[int]) -> list[str]:
        text = generate(scheduled(product(strides)), "kernel", WIDE).text
        lines = (x.strip() for x in text.splitlines())
        return [x for x in lines if x.startswith("B_panels[") and "B_flat[" in x]

    assert ["k_l" in x for x in copies([10000, 1, 30, 150])] == [True, True], "16 of them, and 8"
    (line,) = copies([10000, 400, 80, 1])
    assert line.endswith("k_i * 400 + h_i * 80 + p * 16 + j]")


def test_only_the_last_panel_has_zeros() -> None:
    """70 columns are two panels of 32 and one of six; 64 are two."""
    ragged = generate(scheduled(product([10000, 400, 80, 1])), "kernel", WIDE).text
    zeros = [x for x in ragged.splitlines() if "B_panels[" in x and x.endswith("= T.float32(0)")]
    assert len(zeros) == 1
    whole = generate(scheduled(product([10000, 1, 30, 150], extents={**EXTENTS, "n": 64}), n=64),
                     "kernel", WIDE)  # fmt: skip
    assert not re.search(r"B_panels\[.*= T.float32\(0\)", whole.text)


@pytest.mark.parametrize("neighbours", [2, 3, 4, 16])
@pytest.mark.parametrize("m", [16, 24, 100])
def test_neighbours_compute_the_same_bits(m: int, neighbours: int) -> None:
    """In groups of as many tiles of rows as a head has, of fewer, or where there is only one."""
    chain = attention(3, 100, 70, 16, 20, "float32")
    schedule = schedules(chain, parse("mh.nk"), {"m": m, "n": 70, "k": 16, "h": 20})
    inputs = random_inputs(chain, 0)
    alone = run(schedule, chain, WIDE, inputs)
    assert error(alone, evaluate(chain, inputs)) < 1e-5
    found = run(schedule, chain, replace(WIDE, neighbours=neighbours), inputs)
    assert all(np.array_equal(found[n], alone[n]) for n in alone)


def test_neighbours_copy_once() -> None:
    chain = attention(3, 100, 70, 16, 20, "float32")
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 70, "k": 16, "h": 20})

    def depths(knobs: TensorirKnobs) -> tuple[int, int]:
        """How deep K is copied, and how deep the product is."""
        lines = generate(schedule, "kernel", knobs).text.splitlines()
        copied = next(x for x in lines if "K_panels[" in x and "K_flat[" in x)
        multiplied = next(x for x in lines if "* K_panels[" in x)
        return tuple(len(x) - len(x.lstrip()) for x in (copied, multiplied))  # type: ignore

    text = generate(schedule, "kernel", replace(WIDE, neighbours=4)).text
    assert "for g in T.parallel(6):" in text, "seven tiles of rows are two groups of a head"
    assert "for t in range(T.min(4, 7 - ((g % 2) * 4))):" in text
    alone, together = depths(WIDE), depths(replace(WIDE, neighbours=4))
    assert together[1] - alone[1] == 4
    assert together[0] == alone[0]
