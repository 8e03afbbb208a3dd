"""The micro-tiles of products on vectors, for arrays of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.chain import Bounds, Chain, from_json
from mcfuser.lowering.tensorir.micro import (
    lie_in_panels,
    micro_product,
    micro_rows,
    micro_vectors,
)
from mcfuser.space.expression import parse
from mcfuser.space.plan import Ints
from mcfuser.space.statement import Compute, statements
from tests.support.schedules import schedules


def arrays(*numbers: int) -> list[np.ndarray]:
    return [np.asarray([n]) for n in numbers]


@given(st.integers(1, 200), st.sampled_from([4, 8, 16]), st.integers(1, 4))
def test_vectors_divide_those_of_a_tile(columns: int, lanes: int, most: int) -> None:
    need = -(-columns // lanes)
    (found,) = micro_vectors(*arrays(columns, lanes, most))
    assert found == max(v for v in range(1, most + 1) if need % v == 0)


@given(st.integers(1, 200), st.integers(1, 24), st.sampled_from([4, 8, 16]), st.booleans())
def test_rows_are_the_best_that_the_accumulators_hold(
    rows: int, held: int, lanes: int, divide: bool
) -> None:
    """A row that is padding is computed for nothing; of many rows a vector is used by each."""
    (found,) = micro_rows(*arrays(rows, held, lanes), divide)
    fitting = [
        r for r in range(1, min(held, 1023 // (4 * lanes), rows) + 1)
        if not divide or rows % r == 0
    ]  # fmt: skip

    def used(r: int) -> float:
        return rows / (-(-rows // r) * r) * r / (r + 1)

    assert found in fitting
    assert used(found) == max(map(used, fitting))


def test_candidates_are_told_apart() -> None:
    rows, held, lanes = np.asarray([49, 1, 7]), np.asarray([6, 6, 12]), np.asarray([8, 8, 16])
    assert micro_rows(rows, held, lanes).tolist() == [5, 1, 7]
    columns, most = np.asarray([40, 8, 64]), np.asarray([2, 3, 4])
    assert micro_vectors(columns, np.asarray([8, 8, 16]), most).tolist() == [1, 1, 4]


@pytest.mark.parametrize(("lines", "constant", "taken"), [
    ("C[m, n] = sum[k] A[m, k] * B[k, n]", False, True),
    ("C[b, m] = sum[k] A[b, m, k] * B[b, k]", False, False),
    ("C[b, m] = sum[k] A[b, m, k] * B[b, k]", True, False),
    ("C[m] = sum[k] A[k] * B[k, m]", True, True),
    ("C[m] = sum[k] A[k] * B[k, m]", False, False),
    ("C[m] = sum[k] A[m, k]", False, False),
])  # fmt: skip
def test_products_whose_operands_are_shared_are_taken(
    lines: str, constant: bool, taken: bool
) -> None:
    """Of windows that move apart by channel, and of one row times what is computed, each element is
    used once: to put it in panels costs more than the product."""
    shapes = {"A": lines.split("A[")[1].split("]")[0].split(", ")}
    if "B[" in lines:
        shapes["B"] = lines.split("B[")[1].split("]")[0].split(", ")
    document = {
        "axes": {a: 8 for a in "bmnk" if any(a in s for s in shapes.values())},
        "tensors": {t: {"shape": s, "constant": constant and t == "B"} for t, s in shapes.items()},
        "operators": [lines],
    }
    chain: Chain = from_json(document)
    schedule = schedules(
        chain, parse("".join(a.name for a in chain.axes)), {a.name: 8 for a in chain.axes}
    )
    (s,) = (s for s, _ in statements(schedule.body) if isinstance(s, Compute))
    buffers = {b.name: b for b in schedule.buffers}
    assert (micro_product(chain, buffers, s) is not None) == taken


@pytest.mark.parametrize(("extent", "tile", "width", "lie"), [
    (64, 32, 16, True), (64, 64, 16, True), (48, 32, 16, True), (72, 32, 16, False),
    (72, 72, 24, True), (64, 24, 16, False), (Bounds(1, 64), 32, 16, False),
])  # fmt: skip
def test_panels_lie_in_columns_that_they_fill(
    extent: int | Bounds, tile: int, width: int, lie: bool
) -> None:
    document = {
        "axes": {"m": 8, "n": [1, 64] if isinstance(extent, Bounds) else extent, "k": 8},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    }
    assert lies(document, {"n": tile, "k": 8, "m": 8}, width) == lie


@pytest.mark.parametrize(("rows", "depth", "apart", "lie"), [
    (64, 512, 768, False), (64, 512, 2304, False), (31, 512, 768, True), (64, 64, 2000, True),
    (64, 66, 2000, False), (64, 512, 64, True), (64, 512, 126, True), (64, 512, 130, False),
    (64, 8, 1024, True), (64, 9, 1024, False), (64, 32, 768, True), (64, 33, 768, False),
    (31, 9, 1024, True), (64, 64, 1040, True), (64, 33, 256, False), (64, 256, 128, True),
    (64, 576, 64, True),
])  # fmt: skip
def test_rows_that_lie_far_apart_are_copied_for_many(
    rows: int, depth: int, apart: int, lie: bool
) -> None:
    """Where they are of more pages than a core knows the places of, 64 of 4,096 bytes, or where its
    first cache has more than eight in one place."""
    document = {
        "axes": {"m": 128, "n": 64, "k": 1024},
        "tensors": {"A": {"shape": ["m", "k"]},
                    "B": {"shape": ["k", "n"], "strides": [apart, 1]}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    }  # fmt: skip
    assert lies(document, {"n": 64, "k": depth, "m": rows}, 32) == lie


def lies(document: dict[str, Any], tiles: dict[str, int], width: int) -> bool:
    """Whether panels of B lie in it, the right operand of C."""
    chain: Chain = from_json(document)
    roles = chain.operator("C").product
    assert roles is not None

    def tile(a: str) -> Ints:
        return np.asarray([tiles[a]])

    (found,) = lie_in_panels(chain, roles, "B", "n", tile, np.asarray([width]))
    return bool(found)
