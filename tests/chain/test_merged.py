"""Axes that become one: the same elements of the same arrays, written in digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import Chain, Digit, from_json, merged, rows_merged
from tests.support.arrays import check_arrays
from tests.support.pictures import Windows, padded

WINDOWS = {
    "axes": {"m": 5, "i": 7, "n": 16, "k": 32, "s": 3, "t": 2},
    "tensors": {
        "A": {"shape": ["k", "m", "s", "i", "t"], "strides": [64, 8, 8, 1, 1]},
        "B": {"shape": ["k", "s", "t", "n"], "constant": True},
        "F": {"shape": ["n"]},
    },
    "operators": [
        "C[m, i, n] = sum[k, s, t] A[k, m, s, i, t] * B[k, s, t, n]",
        "E[n, m, i] = max(C[m, i, n] + F[n], 0.0)",
    ],
}  # fmt: skip
"""A convolution of 32 channels of 8 x 8 elements."""


def same(c: Chain) -> Chain:
    """The merged chain, after a look at what both compute."""
    one = merged(c)
    check_arrays(c, one)
    return one


def test_positions_and_windows_of_a_convolution() -> None:
    one = same(from_json(WINDOWS))
    assert str(one) == (
        "C[m, n] = sum[k, s] A[k, m, s] * B[k, s, n]\nE[n, m] = max(C[m, n] + F[n], 0.0)"
    )
    assert [(a.name, a.extent) for a in one.axes] == [("m", 35), ("n", 16), ("k", 32), ("s", 6)]
    assert one.tensor("A").strides == (64, (Digit(5, 8), Digit(7, 1)), (Digit(3, 8), Digit(2, 1)))
    assert one.tensor("B").strides is None and one.tensor("E").strides is None


def test_all_that_is_summed_where_it_lies_side_by_side() -> None:
    """Channels last: every position of a window has 32 channels side by side."""
    a = {"shape": ["m", "s", "i", "t", "k"], "strides": [256, 256, 32, 32, 1]}
    c = from_json({
        **WINDOWS,
        "tensors": {**WINDOWS["tensors"], "A": a},
        "operators": ["C[m, i, n] = sum[k, s, t] A[m, s, i, t, k] * B[k, s, t, n]"],
    })  # fmt: skip
    one = same(c)
    assert str(one) == "C[m, n] = sum[k] A[m, k] * B[k, n]"
    assert one.tensor("A").strides == ((Digit(5, 256), Digit(7, 32)), (Digit(3, 256), Digit(64, 1)))
    assert one.tensor("B").strides == ((Digit(6, 16), Digit(32, 96)), 1)


def test_positions_of_a_window_with_many_channels_side_by_side() -> None:
    """64 channels are tiled well alone."""
    a = {"shape": ["m", "s", "i", "t", "k"], "strides": [512, 512, 64, 64, 1]}
    c = from_json({
        **WINDOWS,
        "axes": {**WINDOWS["axes"], "k": 64},
        "tensors": {**WINDOWS["tensors"], "A": a},
        "operators": ["C[m, i, n] = sum[k, s, t] A[m, s, i, t, k] * B[k, s, t, n]"],
    })  # fmt: skip
    one = same(c)
    assert str(one) == "C[m, n] = sum[k, s] A[m, s, k] * B[k, s, n]"
    assert one.tensor("A").strides == (
        (Digit(5, 512), Digit(7, 64)), (Digit(3, 512), Digit(2, 64)), 1
    )  # fmt: skip


def product(extents: dict[str, int], **changes: object) -> dict[str, object]:
    return {
        "axes": {"m": 3, "i": 5, "n": 16, "k": 16, **extents},
        "tensors": {"A": {"shape": list("mik")}, "B": {"shape": list("kn")}, "F": {"shape": ["m"]}},
        "operators": ["C[m, i, n] = sum[k] A[m, i, k] * B[k, n]"],
        **changes,
    }


def test_dense_rows_are_rows_of_one_stride() -> None:
    one = same(from_json(product({})))
    assert str(one) == "C[m, n] = sum[k] A[m, k] * B[k, n]"
    assert all(t.strides is None for t in one.tensors)


@pytest.mark.parametrize(
    "why",
    [
        product({"i": 64}),  # tiled well alone
        product({"m": 1}),
        product({"m": [1, 3]}),  # known at run time only
        product({"n": [1, 16]}),  # so are the strides of C
        product({}, operators=["C[m, i, n] = sum[k] A[m, i, k] * B[k, n]",
                               "E[m, i, n] = C[m, i, n] + F[m]"]),  # a tensor has one alone
        product({}, operators=["C[m, i, n] = sum[k] A[m, i, k] * B[k, n]",
                               "E[m, i, n] = C[m, i, n] + 1.0 * i"]),  # its position is a value
        product({}, operators=["C[m, i, n] = sum[k] A[m, i, k] * B[k, n] where k <= i"]),
        product({}, operators=["C[m, i, n] = sum[k] A[m, i, k] * B[k, n]",
                               "M[m, n] = max[i] C[m, i, n]"]),  # one of them is reduced
        product({"m": 5}, operators=["C[m, i, n] = sum[k] A[m, i, k] * B[k, n]",
                                     "E[m, i, n] = C[m, i, n] + A[i, m, n]"]),  # and transposed
        product({"m": 5}, operators=["C[m, i, n] = sum[k] A[m, i, k] * B[k, n]",
                                     "E[m, i, n] = C[i, m, n] + 1.0"]),
        product({"i": 3}, operators=["C[m, i, n] = sum[k] A[m, 4 - i, k] * B[k, n]"]),
        {"axes": {"m": 3, "i": 5, "k": 16}, "tensors": {"A": {"shape": list("mik")},
         "B": {"shape": ["k"]}}, "operators": ["C[m, i] = sum[k] A[m, i, k] * B[k]"]},
    ],
)  # fmt: skip
def test_axes_that_stay_apart(why: dict[str, object]) -> None:
    shapes = dict(why["tensors"])  # type: ignore[call-overload]
    if "4 - i" in str(why["operators"]):
        shapes["A"] = {"shape": ["m", 5, "k"]}
    c = from_json({**why, "tensors": {n: t for n, t in shapes.items() if f"{n}[" in str(why)}})
    assert merged(c) == c


@st.composite
def products(draw: st.DrawFn) -> Chain:
    """A product whose sides have up to three axes each, and tensors whose dimensions, and the
    dimensions of whose arrays, are in any order."""
    counts = {side: draw(st.integers(1, 3)) for side in "mnk"}
    sides = {
        side: [side, *"ijpqst"["mnk".index(side) * 2 :][: n - 1]] for side, n in counts.items()
    }
    extents = {a: draw(st.sampled_from([1, 2, 3, 4, 5])) for axes in sides.values() for a in axes}
    rows, columns, depth = sides.values()

    def tensor(axes: Sequence[str]) -> tuple[str, dict[str, object]]:
        dims, laid = draw(st.permutations(axes)), draw(st.permutations(axes))
        sizes = [extents[a] for a in laid]
        strides = {a: math.prod(sizes[i + 1 :]) for i, a in enumerate(laid)}
        return f"[{', '.join(dims)}]", {"shape": dims, "strides": [strides[a] for a in dims]}

    a, left = tensor(rows + depth)
    b, right = tensor(depth + columns)
    f, bias = tensor(rows + columns)
    e, out = tensor(rows + columns)
    c = ", ".join(draw(st.permutations(rows + columns)))
    return from_json({
        "axes": extents,
        "tensors": {"A": left, "B": right, "F": bias, "E": out},
        "operators": [f"C[{c}] = sum[{', '.join(draw(st.permutations(depth)))}] A{a} * B{b}",
                      f"E{e} = C[{c}] + F{f}"],
    })  # fmt: skip


@given(products())
@settings(max_examples=60)
def test_the_merged_chain_computes_the_same_elements(c: Chain) -> None:
    one = same(c)
    sides = [[a.name for a in c.axes if a.name in group and a.extent != 1]
             for group in ("mij", "npq")]  # fmt: skip
    kept = {a.name for a in one.axes}
    assert all(len(kept & {*side}) == (1 if side else 0) for side in sides)


def of_groups(
    outer: int = 8, inner: int = 24, last: bool = True, **more: object
) -> dict[str, object]:
    """A map over pictures, with their channels `last` or not, whose groups of channels have numbers
    of their own."""
    places = 9
    steps = (inner, 1, outer * inner) if last else (places * inner, places, 1)
    return {
        "axes": {"m": 2, "l": places, "i": outer, "j": inner},
        "tensors": {
            "A": {"shape": list("mlij")}, "M": {"shape": list("mi")}, "L": {"shape": list("ij")},
            "Z": {"shape": list("ml")},
            "E": {"shape": list("mijl"), "strides": [places * outer * inner, *steps]},
        },
        "operators": ["E[m, i, j, l] = exp(A[m, l, i, j] - M[m, i]) * L[i, j] + Z[m, l]"],
        **more,
    }  # fmt: skip


def test_the_channels_of_all_groups_are_one_axis_of_a_map() -> None:
    one = same(from_json(of_groups()))
    assert str(one) == "E[m, i, l] = exp(A[m, l, i] - M[m, i]) * L[i] + Z[m, l]"
    assert [(a.name, a.extent) for a in one.axes] == [("m", 2), ("l", 9), ("i", 192)]
    assert one.tensor("M").strides == (8, (Digit(8, 1), Digit(24, 0)))
    assert one.tensor("A").strides is None and one.tensor("L").strides is None


@pytest.mark.parametrize(
    "why",
    [
        of_groups(inner=64),  # the channels of a group are tiled well alone
        of_groups(outer=3, inner=5),  # all of them are not
        of_groups(last=False),  # positions lie side by side
        of_groups(operators=["E[m, i, j, l] = A[m, l, i, j] * L[i, j]"]),  # nothing is of a group
        of_groups(operators=["E[m, i, j, l] = A[m, l, i, j] * M[m, i] * (1.0 * j)"]),
        of_groups(operators=["P[m, i] = sum[j] A[m, 0, i, j] * L[i, j]",
                             "E[m, i, j, l] = A[m, l, i, j] * P[m, i]"]),
    ],
)  # fmt: skip
def test_groups_that_stay_apart_from_their_channels(why: dict[str, object]) -> None:
    tensors = dict(why["tensors"])  # type: ignore[call-overload]
    used = {n: t for n, t in tensors.items() if f"{n}[" in str(why["operators"])}
    c = from_json({**why, "tensors": used})
    assert merged(c) == c


def test_rows_of_a_batch_whose_extent_is_known_at_run_time_only() -> None:
    c = from_json({
        "axes": {"b": [1, 8], "m": 3, "i": 5, "n": 16, "k": 16},
        "tensors": {"A": {"shape": list("bimk")}, "B": {"shape": list("bkn")}},
        "operators": ["C[b, m, i, n] = sum[k] A[b, i, m, k] * B[b, k, n]"],
    })  # fmt: skip
    one = same(c)
    assert str(one) == "C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]"
    assert one.tensor("A").strides == (240, (Digit(3, 16), Digit(5, 48)), 1)
    assert one.tensor("C").strides is None


def test_an_array_smaller_than_its_dimensions_say_is_read_at_its_own_strides() -> None:
    c = from_json(product({}))
    wide = replace(c.tensor("A"), strides=(200, 20, 1), offset=7)
    laid = replace(c, tensors=tuple(wide if t.name == "A" else t for t in c.tensors))
    assert same(laid).tensor("A").strides == ((Digit(3, 200), Digit(5, 20)), 1)


def test_digits_keep_their_padding() -> None:
    rows = Windows(10, 3, before=1, after=1)
    c = padded(rows, Windows(7, 3, after=2), columns=16, dtype="float16")
    one = same(c)
    assert one.tensor("A").padding == c.tensor("A").padding
    digits = [d for s in one.tensor("A").strides or () if not isinstance(s, int) for d in s]
    assert {(d.stride, d.padding) for d in digits} >= {(7, 0), (1, 1)}


# --- the rows of products with constants


def same_rows(c: Chain) -> Chain:
    one = rows_merged(c)
    check_arrays(c, one)
    assert rows_merged(one) == one
    return one


def test_positions_of_a_convolution_are_rows_and_its_windows_stay() -> None:
    one = same_rows(from_json(WINDOWS))
    assert str(one) == (
        "C[m, n] = sum[k, s, t] A[k, s, m, t] * B[k, s, t, n]\nE[n, m] = max(C[m, n] + F[n], 0.0)"
    )
    assert one.tensor("A").strides == (64, 8, (Digit(5, 8), Digit(7, 1)), 1)
    assert one.tensor("E").strides is None


def test_pictures_of_a_batch_stay_apart_from_their_positions() -> None:
    """Between the positions of two pictures lie the other channels of the first one."""
    one = same_rows(from_json({
        **WINDOWS,
        "axes": {"b": 2, **WINDOWS["axes"]},
        "tensors": {
            **WINDOWS["tensors"],
            "A": {"shape": ["b", "k", "m", "s", "i", "t"], "strides": [2048, 64, 8, 8, 1, 1]},
        },
        "operators": [
            "C[b, m, i, n] = sum[k, s, t] A[b, k, m, s, i, t] * B[k, s, t, n]",
            "E[b, n, m, i] = max(C[b, m, i, n] + F[n], 0.0)",
        ],
    }))  # fmt: skip
    assert str(one).startswith("C[b, m, n] = ")
    assert one.tensor("A").strides == (2048, 64, 8, (Digit(5, 8), Digit(7, 1)), 1)


def test_positions_of_windows_are_one_axis_however_long_the_lines_are() -> None:
    """Those that lie side by side in the input, too, are tiled as they are."""
    wide = from_json({
        **WINDOWS,
        "axes": {**WINDOWS["axes"], "m": 4, "i": 64},
        "tensors": {
            **WINDOWS["tensors"],
            "A": {"shape": ["k", "m", "s", "i", "t"], "strides": [390, 65, 65, 1, 1]},
        },
    })  # fmt: skip
    one = same_rows(wide)
    assert one.tensor("A").strides == (390, 65, (Digit(4, 65), Digit(64, 1)), 1)
    flat = replace(wide, tensors=tuple(
        replace(t, strides=(256, 64, 0, 1, 0)) if t.name == "A" else t for t in wide.tensors
    ))  # fmt: skip
    assert rows_merged(flat) == flat


def windows(**tensors: dict[str, object]) -> Chain:
    """The convolution with other tensors; R is added to its result."""
    added = {"R": {"shape": ["n", "m", "i"]}}
    return from_json({
        **WINDOWS,
        "tensors": {**WINDOWS["tensors"], **added, **tensors},
        "operators": [WINDOWS["operators"][0], "E[n, m, i] = C[m, i, n] + F[n] + R[n, m, i]"],
    })  # fmt: skip


def test_what_is_added_lies_as_the_result_does() -> None:
    one = same_rows(windows())
    assert [a.name for a in one.axes] == ["m", "n", "k", "s", "t"]
    assert all(one.tensor(t).strides is None for t in "RE")


@pytest.mark.parametrize(
    "c",
    [
        windows(B={"shape": list("kstn")}),  # computed when the model runs
        windows(R={"shape": ["n", "m", "i"], "strides": [80, 10, 1]}),  # rows with gaps between
        windows(E={"shape": ["n", "m", "i"], "strides": [80, 10, 1]}),
        windows(R={"shape": ["n", "m", "i"], "strides": [35, 1, 5]}),  # columns, one by one
        from_json({
            "axes": {"m": 5, "i": 7, "k": 32, "s": 3, "t": 2},
            "tensors": {"A": WINDOWS["tensors"]["A"],
                        "B": {"shape": list("kst"), "constant": True}},
            "operators": ["C[k, m, i] = sum[s, t] A[k, m, s, i, t] * B[k, s, t]"],
        }),  # vectors along a row of the picture
        from_json(product({"i": 64}, tensors={"A": {"shape": list("mik")},
                                              "B": {"shape": list("kn"), "constant": True}})),
    ],
)  # fmt: skip
def test_rows_that_stay_apart(c: Chain) -> None:
    assert rows_merged(c) == c


@given(products(), st.booleans())
@settings(max_examples=60)
def test_whatever_is_merged_is_read_in_vectors_but_for_left_operands(c: Chain, known: bool) -> None:
    c = replace(c, tensors=tuple(replace(t, constant=known and t.name == "B") for t in c.tensors))
    one = same_rows(c)
    assert known or one == c
    for t in "BFE":
        assert all(isinstance(s, int) for s in one.tensor(t).strides or ())
