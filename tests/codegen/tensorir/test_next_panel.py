"""The panel that comes next is fetched while the one before it is multiplied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mcfuser.chain import BYTES, Chain, from_json
from mcfuser.codegen.tensorir import generate
from mcfuser.codegen.tensorir.fetch import PRIVATE_CACHE
from mcfuser.devices.amx import matrix_unit
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.micro import LINE
from mcfuser.space.expression import parse
from mcfuser.space.schedule import Schedule
from tests.support.host import WIDE_QUADS, needs_wide_quads
from tests.support.matrices import matrix
from tests.support.schedules import schedules
from tests.support.tensorir_agree import drawn_arrays, run
from tests.support.tensorir_walk import touched

KNOBS = TensorirKnobs(8, 2, 16)
MATRIX = TensorirKnobs(8, 2, 16, matrix=True)
NEEDS = {
    "bytes": needs_wide_quads,
    "matrix unit": pytest.mark.skipif(not matrix_unit(), reason="this CPU has no usable AMX"),
}


def pictures() -> Chain:
    """Lines of positions: each tile walks its weights again for every line."""
    tensors = {
        "A": {"shape": ["l", "m", "k"]},
        "B": {"shape": ["k", "n"], "constant": True},
    }
    lines = ["C[l, m, n] = sum[k] A[l, m, k] * B[k, n]"]
    axes = {"l": 6, "m": 16, "n": 192, "k": 64}
    return from_json({"axes": axes, "tensors": tensors, "operators": lines})


def groups() -> Chain:
    tensors = {
        "A": {"shape": ["g", "m", "k"]},
        "B": {"shape": ["g", "k", "n"], "constant": True},
    }
    lines = ["C[g, m, n] = sum[k] A[g, m, k] * B[g, k, n]"]
    axes = {"g": 3, "m": 32, "n": 64, "k": 64}
    return from_json({"axes": axes, "tensors": tensors, "operators": lines})


def tiled(chain: Chain, expression: str, tiles: Mapping[str, int]) -> Schedule:
    return schedules(chain, parse(expression), tiles)


SMALL = matrix(64, 192, 64)
CASES = {
    "rows inside columns": (tiled(SMALL, "nm.k", {"m": 16, "n": 64, "k": 64}), KNOBS),
    "rows inside, depth tiled": (tiled(SMALL, "nm.k", {"m": 16, "n": 64, "k": 16}), KNOBS),
    "columns inside rows": (tiled(SMALL, "mn.k", {"m": 32, "n": 64, "k": 64}), KNOBS),
    "columns inside, depth tiled": (tiled(SMALL, "mn.k", {"m": 32, "n": 64, "k": 16}), KNOBS),
    "one panel in a tile": (tiled(SMALL, "mn.k", {"m": 64, "n": 32, "k": 16}), KNOBS),
    "all columns in a tile": (tiled(SMALL, "m.k", {"m": 64, "n": 192, "k": 64}), KNOBS),
    "rows past the end": (
        tiled(matrix(61, 192, 64), "nm.k", {"m": 16, "n": 64, "k": 64}), KNOBS
    ),
    "float16": (
        tiled(matrix(64, 192, 64, "float16"), "nm.k", {"m": 16, "n": 64, "k": 64}), KNOBS
    ),
    "lines of a picture": (tiled(pictures(), "nl.k", {"l": 3, "m": 16, "n": 64, "k": 64}), KNOBS),
    "lines, depth tiled": (tiled(pictures(), "nl.k", {"l": 6, "m": 16, "n": 64, "k": 16}), KNOBS),
    "groups": (tiled(groups(), "n.k", {"g": 1, "m": 32, "n": 32, "k": 64}), KNOBS),
    "bytes": (
        tiled(matrix(64, 192, 128, "int8"), "nm.k", {"m": 32, "n": 64, "k": 64}), WIDE_QUADS
    ),
    "matrix unit": (tiled(SMALL, "nm.k", {"m": 32, "n": 64, "k": 64}), MATRIX),
    "matrix unit, a block of half the rows": (
        tiled(matrix(160, 96, 96), "mn.k", {"m": 80, "n": 32, "k": 32}), MATRIX
    ),
}  # fmt: skip


def walked(name: str) -> tuple[Schedule, int, list[tuple[str, int]]]:
    """The schedule of a case, the lines that its constant has, and what is done with them."""
    schedule, knobs = CASES[name]
    tensor = schedule.chain.tensor("B")
    line = LINE // BYTES[tensor.dtype]
    found = touched(generate(schedule, "kernel", knobs).text, "B", PRIVATE_CACHE, line)
    return schedule, int(np.prod(schedule.chain.shape("B"))) // line, found


@pytest.mark.parametrize("name", CASES)
def test_lines_are_fetched_before_they_are_first_read(name: str) -> None:
    """All but those of the first panel, or of the first tile of columns where that is walked again.
    At most twice as many are fetched as lie there, for a share is no whole number of lines."""
    schedule, lines, found = walked(name)
    chain = schedule.chain
    tile = lines * chain.size("k") * schedule.tile("n") // int(np.prod(chain.shape("B")))
    fetched, late, seen = set[int](), set[int](), set[int]()
    for what, line in found:
        if what == "fetch":
            fetched.add(line)
        elif line not in seen:
            seen.add(line)
            late |= {line} - fetched
    assert len(seen) == lines
    assert late
    assert late <= set(range(tile))
    assert fetched <= set(range(lines + 2 * tile))


@pytest.mark.parametrize("name", CASES)
def test_a_line_is_fetched_about_once_a_walk(name: str) -> None:
    """A core walks the constant once where rows are inside columns, else once for each tile of
    rows."""
    schedule, lines, found = walked(name)
    count = sum(what == "fetch" for what, _ in found)
    walks = schedule.trips("m") if str(schedule.expression).startswith("m") else 1
    assert 0.9 * lines * walks <= count <= 1.6 * lines * walks


def test_the_micro_tiles_of_a_panel_fetch_the_next_one() -> None:
    schedule = tiled(matrix(64, 128, 64), "mn.k", {"m": 64, "n": 64, "k": 64})
    found = touched(generate(schedule, "kernel", KNOBS).text, "B", PRIVATE_CACHE, LINE // 4)
    panel = 64 * 32 * 4 // LINE
    for number in range(4):
        first, last = number * panel, (number + 1) * panel
        reads = [
            i for i, (what, at) in enumerate(found) if what == "read" and at in range(first, last)
        ]
        fetched = [at for what, at in found[reads[0] - 1 : reads[-1]] if what == "fetch"]
        assert sorted(fetched) == list(range(last, last + panel))


class TestNothingIsFetched:
    def text(self, chain: Chain, tiles: Mapping[str, int], expression: str = "mn.k") -> str:
        text = generate(tiled(chain, expression, tiles), "kernel", KNOBS).text
        return text if f"T.int32(0), T.int32({PRIVATE_CACHE})" in text else ""

    def test_of_what_is_no_packed_constant(self) -> None:
        tiles = {"m": 32, "n": 64, "k": 64}
        assert self.text(SMALL, tiles)
        assert not self.text(matrix(64, 192, 64, constant=False), tiles)

    def test_where_one_micro_tile_has_all_rows(self) -> None:
        assert self.text(SMALL, {"m": 16, "n": 64, "k": 64})
        assert not self.text(SMALL, {"m": 8, "n": 64, "k": 64})
        assert self.text(SMALL, {"m": 8, "n": 64, "k": 64}, "nm.k")

    def test_where_the_private_cache_cannot_hold_both(self) -> None:
        chain = matrix(32, 64, 8192)
        assert self.text(chain, {"m": 32, "n": 32, "k": 2048})
        assert not self.text(chain, {"m": 32, "n": 32, "k": 4096})

    def test_where_a_tile_is_no_one_piece_of_a_panel(self) -> None:
        tensors = {
            "A": {"shape": ["m", "s", "k"]},
            "B": {"shape": ["s", "k", "n"], "constant": True},
        }
        line = "C[m, n] = sum[s, k] A[m, s, k] * B[s, k, n]"
        axes = {"m": 32, "n": 64, "s": 4, "k": 32}
        chain = from_json({"axes": axes, "tensors": tensors, "operators": [line]})
        assert self.text(chain, {"m": 32, "n": 32, "s": 2, "k": 32}, "mn.sk")
        assert not self.text(chain, {"m": 32, "n": 32, "s": 4, "k": 16}, "mn.sk")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=NEEDS.get(n.partition(",")[0], ())) for n in CASES]
)
def test_what_is_fetched_changes_no_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, knobs = CASES[name]
    flat, _ = drawn_arrays(schedule.chain)
    found = run(schedule, schedule.chain, knobs, flat)
    for module in ("fetch", "matrix"):
        monkeypatch.setattr(f"mcfuser.codegen.tensorir.{module}.next_panel", lambda *_: None)
    assert f"T.int32(0), T.int32({PRIVATE_CACHE})" not in generate(schedule, "kernel", knobs).text
    without = run(schedule, schedule.chain, knobs, flat)
    for output, array in found.items():
        assert np.array_equal(array, without[output])
