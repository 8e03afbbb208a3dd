"""Rows of packed constants that are fetched before they are multiplied."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mcfuser.chain import Chain
from mcfuser.codegen.tensorir import generate
from mcfuser.codegen.tensorir.fetch import AHEAD, FIRST_CACHE
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.micro import FIRST, PRIVATE
from mcfuser.space.expression import parse
from mcfuser.space.schedule import Schedule
from tests.support.host import WIDE_QUADS, needs_wide_quads
from tests.support.matrices import matrix
from tests.support.pictures import convolution
from tests.support.schedules import schedules
from tests.support.tensorir_agree import drawn_arrays, run

KNOBS = TensorirKnobs(8, 2, 16)
WIDTH = 32
FETCH = f"T.int32(0), T.int32({FIRST_CACHE})"
"""What a fetch of a row says: to be read, in the first cache."""


def product(n: int, k: int, dtype: str = "float32", constant: bool = True, rows: int = 20) -> Chain:
    return matrix(rows, n, k, dtype, constant)


def text(chain: Chain, depth: int, knobs: TensorirKnobs = KNOBS) -> str:
    return generate(tiled(chain, depth), "kernel", knobs).text


def tiled(chain: Chain, depth: int, rows: int = 16) -> Schedule:
    return schedules(chain, parse("mn.k"), {"m": rows, "n": WIDTH, "k": depth})


def test_panels_that_outgrow_the_first_cache_are_fetched() -> None:
    most = FIRST // 4 // WIDTH
    chain = product(64, 2 * most)
    assert 4 * 64 * 2 * most <= PRIVATE
    assert FETCH not in text(chain, most)
    assert FETCH in text(chain, most + 16)
    assert FETCH not in text(product(64, 2 * most, constant=False), most + 16)
    assert FETCH not in text(chain, most + 16, TensorirKnobs(4, 3, 8))


def test_constants_that_outgrow_private_caches_are_fetched() -> None:
    n = PRIVATE // 4 // 256
    assert FETCH not in text(product(n, 256), 16)
    assert FETCH in text(product(n + WIDTH, 256), 16)
    assert FETCH in text(product(2 * n + WIDTH, 256, "float16"), 16)
    assert FETCH not in text(product(2 * n, 256, "float16"), 16)


def test_the_first_of_many_walks_of_a_small_panel_may_be_late() -> None:
    chain = product(PRIVATE // 4 // 256 + WIDTH, 256, rows=64)
    for rows, fetched in ((32, True), (40, False)):
        found = generate(tiled(chain, 16, rows), "kernel", KNOBS).text
        assert (FETCH in found) == fetched


@pytest.mark.parametrize(("dtype", "lines"), [("float32", 2), ("float16", 1)])
def test_every_line_of_the_row_is_fetched_once(dtype: str, lines: int) -> None:
    """A line of the cache has 64 bytes. The row is AHEAD of the one that is multiplied."""
    found = text(product(2048, 384, dtype), 384)
    starts = re.findall(
        r"prefetch.*address_of\(B_flat\[(.*)\]\), T.int32\(0\), T.int32\(3\)", found
    )
    (multiplied,) = re.findall(r"B_flat\[([^]]* \* 32) \+ j\]", found)
    distance = AHEAD * WIDTH
    assert starts == [f"{multiplied} + {distance + 16 * i}" for i in range(lines)]


def winograd() -> Schedule:
    chain = convolution(6, 10, 20, 5)
    tiles = {a.name: 1 for a in chain.axes} | {"m": 2, "i": 10, "n": 16, "k": 4, "s": 3, "t": 3}
    return schedules(chain, parse("mn.kist"), tiles)


@pytest.mark.parametrize(
    ("schedule", "knobs"),
    [
        (tiled(product(77, 50), 20), KNOBS),
        (tiled(product(77, 50, "float16"), 20), KNOBS),
        (winograd(), TensorirKnobs(6, 2, 8, winograd=2)),
        pytest.param(
            tiled(product(77, 50, "int8"), 20), WIDE_QUADS,
            marks=needs_wide_quads,
        ),
    ],
    ids=["float32", "float16", "winograd", "dots"],
)  # fmt: skip
def test_what_is_fetched_changes_no_result(
    schedule: Schedule, knobs: TensorirKnobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows past the end of the constant are fetched, too: no memory is read there."""
    chain = schedule.chain
    flat, _ = drawn_arrays(chain)
    without = run(schedule, chain, knobs, flat)
    monkeypatch.setattr("mcfuser.codegen.tensorir.fetch.rows_come_late", lambda *_: True)
    assert FETCH in generate(schedule, "kernel", knobs).text
    found = run(schedule, chain, knobs, flat)
    for name, array in found.items():
        assert np.array_equal(array, without[name])
