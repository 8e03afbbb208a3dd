"""Convolutions by Winograd's algorithm on this CPU, against the sum over windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json, rows_merged
from mcfuser.codegen.tensorir import generate
from mcfuser.codegen.tensorir.build import pack
from mcfuser.codegen.tensorir.source import Panels
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import parse
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.pairs import paired
from tests.support.paths import GOLDEN
from tests.support.pictures import Windows, convolution, padded
from tests.support.schedules import schedules
from tests.support.tensorir_agree import drawn_arrays, error, run

KNOBS = TensorirKnobs(6, 2, 8, winograd=2)
FOUR = replace(KNOBS, winograd=4)
WHOLE = {"k": 5, "s": 3, "t": 3}


def scheduled(chain: Chain, expression: str, tiles: dict[str, int]) -> Schedule:
    return schedules(chain, parse(expression), {a.name: 1 for a in chain.axes} | tiles)


def used(schedule: Schedule, knobs: TensorirKnobs = KNOBS) -> bool:
    """Whether the kernel turns pieces of the input."""
    return "_turned[" in generate(schedule, "kernel", knobs).text


def check(chain: Chain, one: Chain, schedule: Schedule, knobs: TensorirKnobs = KNOBS) -> None:
    """The kernel, of a chain that may have its rows along `one` axis, computes what the chain
    does."""
    assert used(schedule, knobs)
    flat, known = drawn_arrays(chain)
    found = run(schedule, one, knobs, flat)
    shaped = {n: a.reshape(chain.shape(n)) for n, a in found.items()}
    assert error(shaped, evaluate(chain, known)) < (1e-6 if knobs.winograd == 2 else 5e-6)


@pytest.mark.thorough
@paired(
    picture=[(7, 2, KNOBS), (7, 4, KNOBS), (7, 7, KNOBS), (9, 4, FOUR), (10, 4, FOUR),
             (11, 8, FOUR), (3, 3, FOUR), (8, 8, FOUR)],
    width=[1, 2, 7, 13, 16, 21],
    last=[False, True],
)  # fmt: skip
def test_tiles_are_whole_lines_of_a_picture(
    picture: tuple[int, int, TensorirKnobs], width: int, last: bool
) -> None:
    """Along the axis of the lines, or numbered line by line. Of seven lines the last pair has one,
    and of an odd width the last piece of a line has one result. Channels are planes, or `last`."""
    height, lines, knobs = picture
    chain = convolution(height, width, 24, last=last)
    tiles = {"m": lines, "i": width, "n": 16} | WHOLE
    check(chain, chain, scheduled(chain, "mn.kist", tiles), knobs)
    one = rows_merged(chain)
    if width > 1:
        tiles = {"m": lines * width, "n": 16} | WHOLE
        check(chain, one, scheduled(one, "mn.kst", tiles), knobs)


@pytest.mark.thorough
@paired(
    columns=[3, 8, 20, 40],
    tiles=[{"n": 16}, {"n": 16, "k": 2}, {"n": 48, "k": 4}],
    knobs=[KNOBS, FOUR, TensorirKnobs(4, 3, 8, winograd=2), TensorirKnobs(8, 2, 16, winograd=2)],
    picture=[(5, False), (5, True), (19, True)],
)
def test_any_tiles_of_columns_and_channels(
    columns: int, tiles: dict[str, int], knobs: TensorirKnobs, picture: tuple[int, bool]
) -> None:
    """Columns that fill no panel, and channels, `last` or not, in parts whose sums are added up."""
    channels, last = picture
    chain = convolution(6, 10, columns, channels, last=last)
    one = rows_merged(chain)
    tiles = {"m": 10 * knobs.winograd} | WHOLE | {"k": channels} | tiles
    check(chain, one, scheduled(one, "mn.kst", tiles | {"n": min(tiles["n"], columns)}), knobs)


@pytest.mark.parametrize("expression", ["pmn.kst", "pnm.kst", "mn.pkst"])
@pytest.mark.parametrize("pictures", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_groups_have_their_own_weights_and_pictures_the_same(
    expression: str, pictures: int, last: bool
) -> None:
    chain = convolution(6, 10, 24, groups=3, pictures=2, last=last)
    one = rows_merged(chain)
    tiles = {"p": pictures, "m": 20, "n": 16} | WHOLE
    check(chain, one, scheduled(one, expression, tiles))


@pytest.mark.parametrize("last", [False, True])
def test_pictures_are_lines_of_one_axis_where_they_are_even(last: bool) -> None:
    chain = convolution(4, 6, 16, pictures=3, last=last)
    one = rows_merged(chain)
    (digits,) = (s for s in one.tensor("A").strides if isinstance(s, tuple))
    assert [d.extent for d in digits] == [3, 4, 6]
    for rows in (12, 36, 72):
        check(chain, one, scheduled(one, "pn.kst", {"p": rows, "n": 16} | WHOLE))
    odd = rows_merged(convolution(5, 6, 16, pictures=3, last=last))
    assert not used(scheduled(odd, "pn.kst", {"p": 90, "n": 16} | WHOLE))


@pytest.mark.parametrize("tiles", [{"m": 10}, {"m": 30}, {"m": 16}, {"s": 1}, {"t": 1}])
def test_other_tiles_are_summed_over_windows(tiles: dict[str, int]) -> None:
    """Single lines, an odd number of them, parts of lines, and single positions of a window."""
    one = rows_merged(convolution(6, 10, 16))
    schedule = scheduled(one, "mn.kst", {"m": 20, "n": 16} | WHOLE | tiles)
    assert not used(schedule)
    flat, known = drawn_arrays(one)
    assert error(run(schedule, one, KNOBS, flat), evaluate(one, known)) < 1e-6


def test_what_is_read_past_a_picture_s_last_line_is_its_last_line() -> None:
    """Nothing lies behind the last channel's."""
    cases = [
        (6, KNOBS, ()),
        (7, KNOBS, (3,)),
        (8, FOUR, ()),
        (9, FOUR, (3, 4, 5)),
        (11, FOUR, (5,)),
    ]
    for height, knobs, lines in cases:
        one = rows_merged(convolution(height, 10, 16))
        schedule = scheduled(one, "mn.kst", {"m": 10 * height, "n": 16} | WHOLE)
        text = generate(schedule, "kernel", knobs).text
        assert tuple(u for u in range(6) if f"T.min({u}, " in text) == lines


def test_what_is_read_past_a_line_s_last_position_is_its_last_one() -> None:
    """Where channels lie side by side nothing lies behind the last position's."""
    for width, knobs in (6, KNOBS), (7, KNOBS), (8, FOUR), (9, FOUR), (11, FOUR):
        one = rows_merged(convolution(8, width, 16, last=True))
        schedule = scheduled(one, "mn.kst", {"m": 8 * width, "n": 16} | WHOLE)
        text = generate(schedule, "kernel", knobs).text
        last = f"T.min(v, {width + 1} - (piece_x * {knobs.winograd}))"
        assert (last in text) == (width % knobs.winograd > 0)
        assert ("T.min(v, " in text) == (last in text)


@pytest.mark.parametrize("knobs", [KNOBS, FOUR])
@pytest.mark.parametrize("expression", ["mn.kst", "mnk.st"])
def test_pictures_with_padding_and_channels_last(knobs: TensorirKnobs, expression: str) -> None:
    """They are copied into boxes, of which a position has the channels of the tile."""
    side = Windows(10, 3, before=1, after=1)
    chain = padded(side, replace(side, extent=9), 16, 20, last=True)
    one = rows_merged(chain)
    tiles = {"p": 1, "m": 9 * knobs.winograd, "n": 16, "s": 3, "t": 3, "k": 16}
    check(chain, one, scheduled(one, expression, tiles), knobs)


def test_weights_are_turned_when_packed() -> None:
    """Every channel's window becomes 16 numbers, G g G^T, each in a matrix of its own."""
    one = rows_merged(convolution(6, 10, 20))
    source = generate(scheduled(one, "mn.kst", {"m": 20, "n": 20} | WHOLE), "kernel", KNOBS)
    (name, panels), = source.packed  # fmt: skip
    assert (name, panels.depth, panels.window) == ("B", (1,), (2, 3))
    array = np.random.default_rng(0).standard_normal((1, 5, 3, 3, 20)).astype("float32")
    packed, array = pack(array, panels), array[0]
    assert packed.shape == (panels.size((1, *array.shape)),) and packed.dtype == np.float32
    packed = packed.reshape(-1, 4, 4, 5, panels.width)
    corner = packed[:, 0, 0].transpose(1, 0, 2).reshape(5, -1)
    np.testing.assert_array_equal(corner[:, :20], array[:, 0, 0])
    assert not corner[:, 20:].any()
    middle = packed[:, 1, 2].transpose(1, 0, 2).reshape(5, -1)[:, :20]
    signs = np.asarray([1, -1, 1])
    expected = (array * signs[None, None, :, None]).sum(axis=(1, 2)) / 4
    np.testing.assert_allclose(middle, expected, rtol=1e-5, atol=1e-6)


def test_panels_of_windows_keep_leading_dimensions_apart() -> None:
    array = np.random.default_rng(0).standard_normal((2, 5, 3, 3, 7)).astype("float32")
    both = pack(array, Panels((1,), 4, 8, (2, 3), 4)).reshape(2, -1)
    for g in range(2):
        alone = pack(array[g], Panels((0,), 3, 8, (1, 2), 4))
        np.testing.assert_array_equal(both[g], alone)


def test_weights_of_several_leading_dimensions_are_turned_each() -> None:
    """The weights of a convolution whose columns become 2 x 3 positions of a larger picture."""
    array = np.random.default_rng(0).standard_normal((5, 3, 3, 7, 2, 3)).astype("float32")
    panels = Panels((0,), 3, 4, (1, 2), 4)
    packed = pack(array, panels)
    assert packed.size == panels.size(array.shape) == 6 * 2 * 36 * 5 * 4
    for number, found in enumerate(packed.reshape(6, -1)):
        alone = array[..., number // 3, number % 3]
        np.testing.assert_array_equal(found, pack(alone, panels))


def test_weights_that_something_else_reads_stay_as_they_are() -> None:
    document = {
        "axes": {"m": 6, "i": 10, "n": 16, "k": 5, "s": 3, "t": 3},
        "tensors": {
            "A": {"shape": ["k", "m", "i", "s", "t"], "strides": [96, 12, 1, 12, 1]},
            "B": {"shape": ["k", "s", "t", "n"], "constant": True},
        },
        "operators": [
            "C[m, i, n] = sum[k, s, t] A[k, m, i, s, t] * B[k, s, t, n]",
            "F[n] = sum[k, s, t] B[k, s, t, n]",
            "E[m, i, n] = C[m, i, n] - F[n]",
        ],
    }
    one = rows_merged(from_json(document))
    assert not used(scheduled(one, "mn.kst", {"m": 20, "n": 16} | WHOLE))


def test_weights_that_are_not_packed_are_refused() -> None:
    """Tiles of columns that fill no panel but the last lie across panels."""
    one = rows_merged(convolution(6, 10, 60))
    with pytest.raises(Illegal, match="not packed"):
        generate(scheduled(one, "mn.kst", {"m": 20, "n": 24} | WHOLE), "kernel",
                 replace(KNOBS, lanes=16))  # fmt: skip


def test_the_text_is_as_it_was(update_golden: bool) -> None:
    one = rows_merged(convolution(7, 13, 24))
    text = generate(scheduled(one, "mn.kst", {"m": 26, "n": 16} | WHOLE), "kernel", KNOBS).text
    path = GOLDEN / "tensorir" / "convolution_winograd.py"
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text, "run pytest --update-golden if the change is meant"
