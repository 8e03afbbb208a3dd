"""Tiling expressions: their text, how many there are, and what may bind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from math import factorial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import Chain, Operator, attention, from_json, gemm, to_json
from mcfuser.errors import ChainError
from mcfuser.space.expression import (
    Expression,
    bind,
    bindable,
    deep,
    flat,
    interchangeable,
    loop_axes,
    orders,
    parse,
    rename,
    tilings,
)
from tests.support.chains import LINES, chain, named

SIZES = dict.fromkeys("bmnkhpc", 8)
GEMM = gemm(1, 8, 8, 8, 8)


@st.composite
def trees(draw: st.DrawFn, letters: Sequence[str] | None = None) -> Expression:
    """Any tree over some loops; its root may bind."""
    root = letters is None
    if letters is None:
        every = ["m", "n", "k", "h", "p", "q1", "r22"]
        letters = draw(st.permutations(every))[: draw(st.integers(1, len(every)))]
    nested = draw(st.integers(0, len(letters)))
    rest = letters[nested:]
    if len(rest) < 2:
        loops, parts = tuple(letters), ()
    else:
        loops = tuple(letters[:nested])
        cuts = sorted(draw(st.sets(st.integers(1, len(rest) - 1), min_size=1)))
        edges = [0, *cuts, len(rest)]
        parts = tuple(draw(trees(rest[i:j])) for i, j in pairwise(edges))
    bound = draw(st.integers(0, len(loops))) if root else 0
    return Expression(loops, parts, bound)


@settings(max_examples=200, deadline=None)
@given(trees())
def test_the_text_of_an_expression_says_it(e: Expression) -> None:
    assert parse(str(e)) == e


@pytest.mark.parametrize(
    "text", ["mhnk", "mn(k,h)", "mh.nk", "m.n(k,h)", "m(n(k,h),p)", "(k,h)", "m."]
)
def test_it_prints_as_the_paper_does(text: str) -> None:
    assert str(parse(text)) == text
    assert str(parse(" ".join(text))) == text


def test_the_parts_of_an_expression() -> None:
    e = parse("m.n(kp,h)")
    assert (e.loops, e.grid, e.axes, e.deep) == (("m", "n"), ("m",), tuple("mnkph"), False)
    assert e.path(["k", "m"]) == ("m", "n", "k", "p")
    assert e.path(["h"]) == ("m", "n", "h")
    assert e.path(["m"]) == ("m", "n")
    assert parse("mhnk").deep


@pytest.mark.parametrize(
    "text", ["", "m,", "M", "mhn-k", "mm", "m(n,m)", "m(n", "m)n", "m(n,k))", "1m", "mn(k,h)p"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ChainError, match="tiling expression"):
        parse(text)


# --- how many -------------------------------------------------------------------------------


def test_the_papers_chain_has_24_deep_and_2_flat_tilings() -> None:
    assert len(deep(GEMM)) == 24
    assert [str(e) for e in flat(GEMM)] == ["mn(k,h)", "nm(k,h)"]
    assert tilings(GEMM) == deep(GEMM) + flat(GEMM)


def test_elementwise_operators_add_no_expressions() -> None:
    assert {str(e) for e in tilings(attention(1, 8, 8, 8, 8))} == {str(e) for e in tilings(GEMM)}


def test_batch_axes_have_no_loop() -> None:
    assert loop_axes(gemm(4, 8, 8, 8, 8)) == ("m", "n", "k", "h")


def test_one_product_has_no_flat_tiling() -> None:
    assert flat(named("linear", SIZES)) == ()


def test_siblings_share_all_their_loops() -> None:
    c = chain(SIZES, *LINES["gated"])
    assert {str(e) for e in flat(c)} == {"mn(k,h)", "nm(k,h)"}


def test_three_products_part_where_a_shared_loop_allows() -> None:
    c = named("three_products", SIZES)
    assert len(deep(c)) == factorial(5)
    found = {str(e) for e in flat(c)}
    assert {"mnh(k,p)", "mh(nk,p)", "mh(kn,p)", "mn(k,hp)", "mn(k,ph)"} <= found
    assert "m(nk,hp)" not in found  # the second product needs n and h both


def test_four_products_have_parts_within_parts() -> None:
    sizes = dict.fromkeys("mnkhpq", 8)
    lines = [*LINES["three_products"][1], "J[m, q] = sum[p] G[m, p] * L[p, q]"]
    c = chain(sizes, {**LINES["three_products"][0], "L": "pq"}, lines)
    found = {str(e) for e in flat(c)}
    assert "mhn(k,p(q))" not in found
    assert "mn(k,h(p,q))" not in found  # the last product needs p as well
    assert {"mnp(k,h,q)", "mp(n(k,h),q)", "mn(k,p(h,q))"} <= found


# The rule, said again: below its nested loops an expression's operators fall into consecutive
# groups, one a part; the loops of a part are those left that its group uses, no other group does.


def follows_the_rule(e: Expression, operators: Sequence[Operator], loops: Sequence[str]) -> bool:
    if not e.parts:
        return sorted(e.loops) == sorted(loops)
    rest = set(loops) - set(e.loops)
    for cuts in combinations(range(1, len(operators)), len(e.parts) - 1):
        edges = (0, *cuts, len(operators))
        groups = [operators[i:j] for i, j in pairwise(edges)]
        used = [{a for o in g for a in o.related} & rest for g in groups]
        private = sum(map(len, used)) == len(set().union(*used)) == len(rest)
        if (
            private
            and all(used)
            and all(
                follows_the_rule(p, g, sorted(u))
                for p, g, u in zip(e.parts, groups, used, strict=True)
            )
        ):
            return set(e.loops) | rest == set(loops)
    return False


def every_tree(order: Sequence[str]) -> Iterator[Expression]:
    """All trees whose loops stand in this order, each part of which has a loop."""
    yield Expression(tuple(order))
    for nested in range(len(order) - 1):
        for parts in sequences(order[nested:], len(order) - nested - 1):
            yield Expression(tuple(order[:nested]), parts)


def sequences(order: Sequence[str], longest: int) -> Iterator[tuple[Expression, ...]]:
    """All ways to cut loops into trees one after the other, the first of at most `longest`."""
    if not order:
        yield ()
    for n in range(1, min(longest, len(order)) + 1):
        for head in every_tree(order[:n]):
            for rest in sequences(order[n:], len(order)):
                yield (head, *rest)


@pytest.mark.parametrize(
    "name", ["gemm", "softmax_in_place", "gated", "mlp", "linear", "layer_norm", "three_products"]
)
def test_they_are_all_the_trees_that_follow_the_rule(name: str) -> None:
    c = named(name, SIZES)
    loops = loop_axes(c)
    candidates = (e for order in permutations(loops) for e in every_tree(order))
    expected = {e for e in candidates if follows_the_rule(e, c.operators, loops)}
    found = tilings(c)
    assert set(found) == expected
    assert len(set(found)) == len(found)


# --- binding --------------------------------------------------------------------------------

CHAINS = {name: named(name, SIZES) for name in LINES}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(CHAINS)), st.integers(0, 10**6))
def test_binding_moves_the_spatial_loops_of_the_nest_to_the_grid(name, pick) -> None:
    c = CHAINS[name]
    every = tilings(c)
    e = every[pick % len(every)]
    bound = bind(c, e)
    assert bind(c, bound) == bound
    assert sorted(bound.axes) == sorted(e.axes)
    assert bound.parts == e.parts
    assert set(bound.grid) == set(e.loops) & bindable(c)
    order = {a: i for i, a in enumerate(e.loops)}
    for part in (bound.grid, bound.loops[bound.bound :]):
        assert sorted(part, key=order.__getitem__) == list(part)


@pytest.mark.parametrize(
    ("name", "spatial"),
    [("gemm", "mh"), ("attention", "mh"), ("linear", "mn"), ("layer_norm", "m"),
     ("three_products", "mp"), ("rms_norm_projection", "mn"), ("convolution", "mh")],
)  # fmt: skip
def test_spatial_loops_are_kept_by_every_output_and_reduced_by_nothing(name, spatial) -> None:
    batch = {"b"} if "b" in [a.name for a in CHAINS[name].axes] else set()
    assert bindable(CHAINS[name]) == set(spatial) | batch


def test_a_second_output_may_unbind() -> None:
    both = from_json(to_json(GEMM) | {"outputs": ["C", "E"]})
    assert bindable(both) == {"b", "m"}


@settings(max_examples=100, deadline=None)
@given(trees(), st.permutations([*"abcdefg"]))
def test_renaming_keeps_the_tree(e: Expression, letters) -> None:
    names = dict(zip(["m", "n", "k", "h", "p", "q1", "r22"], letters, strict=True))
    other = rename(e, names)
    assert other.axes == tuple(names[a] for a in e.axes)
    assert (other.bound, other.deep) == (e.bound, e.deep)
    assert rename(other, {v: k for k, v in names.items()}) == e


def convolution(**extents: int) -> Chain:
    return from_json({
        "axes": {"m": 5, "i": 5, "n": 16, "k": 8, "s": 3, "t": 3} | extents,
        "tensors": {"A": {"shape": ["k", "m", "i", "s", "t"], "strides": [49, 7, 1, 7, 1]},
                    "B": {"shape": ["k", "s", "t", "n"]}},
        "operators": ["C[m, i, n] = sum[k, s, t] A[k, m, i, s, t] * B[k, s, t, n]"],
    })  # fmt: skip


def test_positions_and_windows_of_a_convolution_are_interchangeable_loops() -> None:
    assert set(interchangeable(convolution())) == {("m", "i"), ("k", "s", "t")}
    assert interchangeable(gemm(1, 64, 64, 32, 32)) == ()


def test_of_many_loops_interchangeable_ones_keep_their_order() -> None:
    found = tilings(convolution())
    assert len(found) == 720 // 2 // 6
    for e in found:
        assert e.loops.index("m") < e.loops.index("i")
        assert e.loops.index("k") < e.loops.index("s") < e.loops.index("t")


@pytest.mark.parametrize("alike", [(), ("ac",), ("ca", "bd"), ("abcd",)])
def test_orders_are_those_of_all_in_which_rows_have_theirs(alike: tuple[str, ...]) -> None:
    """Of fewer loops than there are, a row has its first ones."""

    def kept(order: tuple[str, ...], row: str) -> bool:
        found = [a for a in order if a in row]
        return found == [*row[: len(found)]]

    for count in range(6):
        every = [o for o in permutations("abcde", count) if all(kept(o, row) for row in alike)]
        assert [*orders("abcde", count, tuple(map(tuple, alike)))] == every


def test_loops_in_sequence_keep_the_order_of_interchangeable_ones_as_well() -> None:
    two = from_json({
        "axes": {"m": 5, "i": 5, "k": 8, "s": 3, "h": 4, "t": 3},
        "tensors": {"A": {"shape": ["m", "i", "k", "s"]}, "B": {"shape": ["m", "i", "h", "t"]}},
        "operators": [
            "C[m, i] = sum[k, s] A[m, i, k, s]", "D[m, i] = sum[h, t] B[m, i, h, t]",
            "E[m, i] = C[m, i] + D[m, i]",
        ],
    })  # fmt: skip
    rows = interchangeable(two)
    assert set(rows) == {("m", "i"), ("k", "s"), ("h", "t")} and flat(two)
    for e in flat(two):
        assert all([a for a in e.axes if a in row] == [*row] for row in rows)


def test_eleven_loops_are_a_matter_of_seconds() -> None:
    """Those of a transposed convolution in three dimensions: 39,916,800 orders in all."""
    axes = dict.fromkeys("mijnpqrkstu", 2)
    chain = from_json({
        "axes": axes,
        "tensors": {"A": {"shape": [*"kmijstu"]}, "B": {"shape": [*"kstunpqr"]}},
        "operators": [
            "C[m, i, j, n, p, q, r] = sum[k, s, t, u] A[k, m, i, j, s, t, u] * "
            "B[k, s, t, u, n, p, q, r]"
        ],
    })  # fmt: skip
    assert len(tilings(chain)) == factorial(11) // (factorial(3) * factorial(4) * factorial(4))


def test_of_few_loops_all_orders_are_there() -> None:
    chain = from_json({
        "axes": {"m": 5, "i": 5, "n": 16, "k": 8},
        "tensors": {"A": {"shape": ["k", "m", "i"]}, "B": {"shape": ["k", "n"]}},
        "operators": ["C[m, i, n] = sum[k] A[k, m, i] * B[k, n]"],
    })  # fmt: skip
    assert interchangeable(chain) == (("m", "i"),) and len(tilings(chain)) == 24


def test_a_chain_whose_loops_nest_in_too_many_ways_is_refused_at_once() -> None:
    """Ten loops of two pooled values, a mean of one of them and a product with it."""
    found = from_json({
        "axes": {"m": 1, "n": 8, "k": 8, "s": 6, "h": 7, "v": 7, "w": 3, "x": 3, "y": 3, "z": 3},
        "tensors": {
            "A": {"shape": [*"mkhwvx"]}, "F": {"shape": [*"mkhyvz"]}, "B": {"shape": [*"skn"]},
        },
        "operators": [
            "Z[m, k, h, v] = sum[w, x] A[m, k, h, w, v, x]",
            "Y[m, k, h, v] = sum[y, z] F[m, k, h, y, v, z]",
            "M[m, s, k] = sum[h, v] select(s < 1, Z[m, k, h, v], Y[m, k, h, v])",
            "C[m, n] = sum[s, k] M[m, s, k] * B[s, k, n]",
        ],
    })  # fmt: skip
    begun = time.monotonic()
    for of in (tilings, flat):
        with pytest.raises(ChainError, match=r"10 loops of the chain .* more than 30000 ways"):
            of(found)
    assert time.monotonic() - begun < 10
