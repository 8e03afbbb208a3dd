"""Tiles that are loaded as the matrices that products take, and are added up as such."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.codegen.triton import TritonSource
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.lowering.triton.matrix import divisor
from mcfuser.space.expression import bind, tilings
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.pictures import drawn_windows, padded
from tests.support.triton_agree import agree
from tests.support.triton_cases import scheduled

TILES = {"m": 2, "i": 16, "n": 16, "k": 32}


def gated(
    rows: int = 32, depth: int = 64, dtype: str = "float16", operand: str = "A", batches: int = 3
) -> Chain:
    """Rows of some batches by weights; the gate of a batch keeps these an axis of their own. What
    is multiplied is `operand` of A."""
    operand = operand.replace("A", "A[m, i, k]")
    return from_json({
        "axes": {"m": batches, "i": rows, "n": 32, "k": depth},
        "tensors": {
            "A": {"shape": list("mik"), "dtype": dtype}, "B": {"shape": list("kn"), "dtype": dtype},
            "G": {"shape": list("mn")}, "H": {"shape": list("min")},
        },
        "operators": [f"C[m, i, n] = sum[k] {operand} * B[k, n]",
                      "E[m, i, n] = H[m, i, n] + G[m, n] * C[m, i, n]"],
    })  # fmt: skip


def of(chain: Chain, expression: str = "min.k", **tiles: int) -> Schedule:
    return scheduled(chain, expression, {**TILES, **tiles})


def checked(schedule: Schedule, chain: Chain, combine: str = "kernel") -> TritonSource:
    """The kernel of a schedule, which computes what the chain means."""
    return agree(schedule, chain, 0, TritonKnobs(combine=combine))


@pytest.mark.parametrize("rows", [32, 40, 7])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_of_several_batches_are_loaded_as_one_matrix(rows: int, dtype: str) -> None:
    c = gated(rows, dtype=dtype)
    schedule = of(c)
    assert TileLayout(schedule).matrices == {"A": (("m", "i"), ("k",))}
    text = checked(schedule, c).text
    assert "A_at_m_i = tl.multiple_of(tl.reshape(" in text and "A_at_m_i[:, None]" in text
    assert text.count("C_matrix = tl.dot(A, B, C_matrix") == 1, "nothing is moved in the loop"


def test_of_rows_past_the_end_nothing_is_loaded() -> None:
    """Of the third batch's two tiles, one has eight rows; there is no fourth batch."""
    c = gated(40)
    text = checked(of(c), c).text
    (line,) = [part for part in text.splitlines() if "A_m_i_in = " in part]
    assert "m_in[:, None] & i_in[None, :]" in line
    assert "mask=A_m_i_in[:, None]" in text


@pytest.mark.parametrize(
    ("chain", "tiles"),
    [
        (gated(), {"m": 1}), (gated(depth=65), {}), (gated(operand="(A + 1.0)"), {}),
        (gated(operand="A * A"), {}),
    ],
    ids=["one batch", "odd rows", "computed", "no product"],
)  # fmt: skip
def test_other_tiles_are_loaded_as_they_are(chain: Chain, tiles: dict[str, int]) -> None:
    schedule = of(chain, **tiles)
    assert not TileLayout(schedule).matrices
    assert "multiple_of" not in checked(schedule, chain).text


def test_a_tile_that_is_read_otherwise_too_is_loaded_as_it_is() -> None:
    c = gated()
    lines = ["Z[m, i] = max[k] A[m, i, k]", *map(str, c.operators)]
    tensors = {t.name: {"shape": [*t.shape], "dtype": t.dtype} for t in c.tensors if t.name != "C"}
    axes = {a.name: a.extent for a in c.axes}
    lines[-1] += " + Z[m, i]"
    both = from_json({"axes": axes, "tensors": tensors, "operators": lines})
    schedule = of(both)
    assert "A" in TileLayout(schedule).operands and not TileLayout(schedule).matrices
    checked(schedule, both)


def test_tensor_maps_are_of_what_is_a_matrix_anyway() -> None:
    layout = TileLayout(of(gated(batches=4)), tma=True)
    assert layout.maps.keys() == {"B"} and layout.matrices.keys() == {"A"}


def test_what_addresses_are_multiples_of() -> None:
    c = gated(24, 96)
    layout = TileLayout(of(c))
    load = layout.loads["A"]
    assert divisor(c, load, ("m", "i")) == 32, "24 * 96 and 96 are"
    assert divisor(c, load, ("k",)) == 1


def test_parts_of_a_sum_are_matrices_in_their_loops() -> None:
    c = gated(depth=128)
    schedule = scheduled(c, "min.k", TILES, "k", 2)
    text = checked(schedule, c, "last").text
    assert text.count("C_matrix = tl.dot(A, B, C_matrix") == 1


def test_tiles_of_windows_in_several_pictures_agree_with_what_the_chain_means() -> None:
    """Tiles of random extents over pictures, lines and elements, some of which are padding."""
    rng, loaded, summed, count = Random(7), 0, 0, 0
    while count < 40:
        c = padded(
            drawn_windows(rng), drawn_windows(rng), 16, rng.choice((16, 64)), 3,
            rng.choice(("float16", "float32")), last=True,
        )  # fmt: skip
        sizes = {a.name: rng.choice((1, 2, 3, 8, 16)) for a in c.axes}
        sizes |= {"k": rng.choice((8, 16)), "s": 1, "t": rng.choice((1, 1, 3))}
        try:
            schedule = scheduled(c, bind(c, rng.choice(tilings(c))), sizes)
            text = checked(schedule, c).text
        except Illegal:
            continue
        count += 1
        loaded += "multiple_of" in text
        summed += "C_matrix" in text
    assert loaded >= 10 and summed >= 10, (loaded, summed)


def test_it_is_said_of_a_schedule_and_not_of_a_chain() -> None:
    one = of(gated())
    assert TileLayout(replace(one, tiles=(("m", 1), *one.tiles[1:]))).matrices == {}
