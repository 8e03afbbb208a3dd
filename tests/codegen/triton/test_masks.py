"""However a sum over a maximum is spelt, it is masked as a softmax is, and its kernel is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from mcfuser.chain import Chain, from_json
from tests.support.triton_agree import agree
from tests.support.triton_cases import scheduled

CAUSAL = " where n <= m"
SHAPES = {"Q": "mk", "K": "nk", "V": "nh", "M": "mn"}
TILES = {"m": 16, "n": 16, "k": 16, "h": 16}


def spelt(top: str, weight: str, inside: str, extent: int, more: Sequence[str] = ()) -> Chain:
    """A maximum of multiples of scores, weights, their sum, and their product with V."""
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        f"R[m] = max[n] {top}{inside}",
        f"P[m, n] = {weight}",
        f"Z[m] = sum[n] P[m, n]{inside}",
        f"U[m, h] = sum[n] P[m, n] * V[n, h]{inside}",
        "O[m, h] = U[m, h] / Z[m]",
    ]
    return from_json({
        "axes": {"m": extent, "n": extent, "k": 16, "h": 16},
        "tensors": {t: {"shape": list(s)} for t, s in SHAPES.items() if f"{t}[" in " ".join(lines)},
        "operators": [*lines, *more], "outputs": ["O", "R"] if "R" not in weight else ["O"],
    })  # fmt: skip


def selections(text: str) -> int:
    """Selections of tiles over m and n: those of rows alone guard a maximum or a quotient."""
    return sum("tl.where(n" in line for line in text.splitlines())


SPELT = {
    "as a softmax": ("S[m, n] * 0.3", "exp(S[m, n] * 0.3 - R[m])"),
    "to base two": ("S[m, n] * 0.3", "exp2(S[m, n] * 0.3 - R[m])"),
    "no factor": ("S[m, n]", "exp2(S[m, n] - R[m])"),
    "negated": ("S[m, n]", "exp(-(R[m] - S[m, n]))"),
    "times one": ("S[m, n]", "exp(1.0 * (S[m, n] - R[m]))"),
    "scaled afterwards": ("S[m, n]", "exp(0.3 * (S[m, n] - R[m]))"),
    "not subtracted": ("S[m, n]", "exp(S[m, n] * 0.1)"),
}


@pytest.mark.parametrize(("extent", "inside"), [(37, ""), (32, CAUSAL), (37, CAUSAL)])
@pytest.mark.parametrize("form", sorted(SPELT))
def test_every_spelling_is_masked_once(form: str, extent: int, inside: str) -> None:
    chain = spelt(*SPELT[form], inside, extent)
    text = agree(scheduled(chain, "mh.nk", TILES), chain).text
    assert selections(text) == 1, text


@pytest.mark.parametrize("form", sorted(SPELT))
def test_masks_of_lanes_of_the_next_tile(form: str) -> None:
    """A tile of 24 has 32 lanes: where a domain ends with the axis, they are not past its end."""
    chain = spelt(*SPELT[form], CAUSAL, 37)
    agree(scheduled(chain, "mh.nk", {**TILES, "n": 24}), chain)


@pytest.mark.parametrize("form", sorted(SPELT))
@pytest.mark.parametrize("inside", ["", CAUSAL])
def test_parts_of_a_split_are_masked_as_well(form: str, inside: str) -> None:
    chain = spelt(*SPELT[form], inside, 70)
    agree(scheduled(chain, "mh.nk", TILES, "n", 3), chain)


@pytest.mark.parametrize(("extent", "inside"), [(37, ""), (32, CAUSAL), (37, CAUSAL)])
def test_a_sum_and_a_sum_of_squares_are_masked_once(extent: int, inside: str) -> None:
    """What is loaded is zero past the end, and so are its products: a domain alone is a mask."""
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        f"A[m] = sum[n] S[m, n]{inside}",
        f"B[m] = sum[n] S[m, n] * S[m, n]{inside}",
        f"D[m] = sum[n] abs(S[m, n]){inside}",
    ]
    chain = from_json({
        "axes": {"m": extent, "n": extent, "k": 16},
        "tensors": {t: {"shape": list(SHAPES[t])} for t in "QK"},
        "operators": lines, "outputs": ["A", "B", "D"],
    })  # fmt: skip
    text = agree(scheduled(chain, "m.nk", TILES), chain).text
    assert selections(text) == (1 if inside else 0), text


def test_a_maximum_alone_has_the_mask_that_it_needs() -> None:
    lines = ["S[m, n] = sum[k] Q[m, k] * K[n, k]", "R[m] = max[n] S[m, n] * 0.5"]
    chain = from_json({
        "axes": {"m": 37, "n": 37, "k": 16}, "operators": lines,
        "tensors": {t: {"shape": list(SHAPES[t])} for t in "QK"},
    })  # fmt: skip
    text = agree(scheduled(chain, "m.nk", TILES), chain).text
    assert selections(text) == 1, text


@pytest.mark.parametrize(
    ("scores", "weight", "kept"),
    [
        ("S[m, n]", "exp(S[m, n] - R[m])", "T[m] = sum[n] S[m, n] + 1.0"),
        ("S[m, n]", "exp(S[m, n] - R[m])", "T[m] = sum[n] P[m, n] * log(P[m, n])"),
        ("S[m, n] * M[m, n]", "exp(S[m, n] * M[m, n] - R[m])", ""),
        ("abs(S[m, n])", "exp(S[m, n])", ""),
        ("S[m, n]", "exp(R[m] - S[m, n])", ""),
    ],
    ids=["scores", "entropy", "a mask may be in it", "sign", "rising"],
)
def test_what_is_not_absorbed_keeps_every_mask(scores: str, weight: str, kept: str) -> None:
    chain = spelt(scores, weight, "", 37, [kept] if kept else [])
    if kept:
        chain = replace(chain, outputs=("O", "T"))
    text = agree(scheduled(chain, "mh.nk", TILES), chain).text
    assert selections(text) > 1, text


def softmax(
    tiles: Mapping[str, int], extent: int = 37, parts: int = 1, expression: str = "mh.nk"
) -> str:
    chain = spelt(*SPELT["as a softmax"], "", extent)
    split = ("n", parts) if parts > 1 else ()
    return agree(scheduled(chain, expression, {**TILES, **tiles}, *split), chain).text


@pytest.mark.parametrize("tiles", [{}, {"m": 8, "n": 32}])
def test_the_last_iteration_alone_looks_past_the_end(tiles: Mapping[str, int]) -> None:
    """It stands behind the loop, whose tiles lie inside the extent."""
    text = softmax(tiles)
    tile = {**TILES, **tiles}["n"]
    head = f"    for n_start in range(0, {37 // tile * tile}, {tile}):\n"
    before, last = text.split(f"    n = {37 // tile * tile} + tl.arange(0, {tile})\n")
    assert head in before
    assert "n_in" not in before
    assert selections(last) == 1


@pytest.mark.parametrize(
    ("expression", "tiles", "parts"),
    [("mh.nk", {"k": 8}, 1), ("m.n(k,h)", {"h": 8}, 1), ("mh.nk", {"n": 24}, 1), ("mh.nk", {}, 2)],
    ids=["a loop inside", "loops written out", "lanes of the next tile", "parts"],
)
def test_other_loops_look_past_the_end_in_every_iteration(
    expression: str, tiles: Mapping[str, int], parts: int
) -> None:
    text = softmax(tiles, 37, parts, expression)
    assert selections(text) == 1
    assert text.count("R_old = R\n") == 1


def test_an_extent_of_whole_tiles_has_one_loop() -> None:
    text = softmax({}, 48)
    assert "range(0, 48, 16)" in text
    assert selections(text) == 0
