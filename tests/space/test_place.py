"""Placement: the paper's texts, and what holds of every placed program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product as every

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.roll import OLD
from mcfuser.chain import BYTES, Chain, from_json, gemm, to_json
from mcfuser.expr import reads
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.place import place
from mcfuser.space.plan import Plan
from mcfuser.space.program import Program, program
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Combine,
    Compute,
    Illegal,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Statement,
    Store,
    StorePartial,
    loops,
    notation,
    statements,
)
from tests.support.chains import LINES, chain, inputs, named
from tests.support.every_schedule import right

SIZES = dict.fromkeys("bmnkhpc", 8)
GEMM = program(gemm(1, 8, 8, 8, 8))


@cache
def listed(name: str) -> Program:
    return program(named(name, SIZES))


def text(expression: str, dead: Sequence[str] = (), move: bool = True, of: Program = GEMM) -> str:
    _, body = place(of, parse(expression), dead, move)
    return notation(body, of.batch)


# --- the paper's texts ----------------------------------------------------------------------


def test_statements_stand_at_their_rightmost_related_loop() -> None:
    assert text("mhnk", move=False) == "mhn(k(L_A,L_B,C_C),L_D,C_E,S_E)"  # section III-B


def test_a_store_leaves_the_loop_that_does_not_index_it() -> None:
    assert text("mhnk") == "mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)"  # Fig. 4a


def test_a_load_moves_out_once_a_loop_is_dead() -> None:
    assert text("mhnk", "k") == "m(L_A,h(n(L_B,C_C,L_D,C_E),S_E))"  # Fig. 4b and 5b


@pytest.mark.parametrize(
    ("expression", "dead", "expected"),
    [
        ("mh.nk", "", "mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)"),
        ("mh.nk", "k", "mh(L_A,n(L_B,C_C,L_D,C_E),S_E)"),
        ("mh.nk", "nk", "mh(L_A,L_B,C_C,L_D,C_E,S_E)"),
        ("mh.nk", "hk", "m(L_A,n(L_B,C_C,L_D,C_E),S_E)"),
        ("mh.nk", "mhnk", "L_A,L_B,C_C,L_D,C_E,S_E"),
        ("mnhk", "", "m(nh(k(L_A,L_B,C_C),L_D,C_E),S_E)"),
        ("m.n(k,h)", "", "m(n(k(L_A,L_B,C_C),h(L_D,C_E)),S_E)"),
        ("mhkn", "", "mh(k(L_A,n(L_B,C_C)),n(L_D,C_E),S_E)"),
    ],
)
def test_other_placements_of_the_papers_chain(expression, dead, expected) -> None:
    assert text(expression, dead) == expected


def test_a_store_leaves_a_loop_that_only_recomputes_it() -> None:
    both = program(from_json(to_json(gemm(1, 8, 8, 8, 8)) | {"outputs": ["C", "E"]}))
    assert text("mnhk", move=False, of=both) == "mnh(k(L_A,L_B,C_C,S_C),L_D,C_E,S_E)"
    assert text("mnhk", of=both) == "m(n(h(k(L_A,L_B,C_C),L_D,C_E),S_C),S_E)"


def test_an_online_softmax_is_one_loop() -> None:
    assert text("m.n(k,h)", "kh", of=listed("softmax_in_place")) == (
        "m(L_Q,n(L_K,C_S,C_R,C_P,C_Z,L_V,C_O_sum),C_O,S_O)"
    )


def test_what_cannot_be_repaired_walks_again() -> None:
    lines = ["A[m] = sum[n] X[m, n]", "Q[m] = sum[n] abs(X[m, n] - A[m])"]
    of = program(chain({"m": 8, "n": 8}, {"X": "mn"}, lines))
    assert text("m.n", of=of) == "m(n(L_X,C_A),n(L_X,C_Q),S_Q)"


def test_siblings_share_the_load_of_their_input() -> None:
    assert text("mh.nk", of=listed("gated")).count("L_X") == 1


# --- what holds of every placed program -----------------------------------------------------


@st.composite
def placements(draw: st.DrawFn) -> tuple[Program, Plan]:
    of = listed(draw(st.sampled_from(sorted(LINES))))
    expression = draw(st.sampled_from(tilings(of.chain)))
    if draw(st.booleans()):
        expression = bind(of.chain, expression)
    dead = draw(st.sets(st.sampled_from(expression.axes)))
    return of, Plan(of, expression, frozenset(dead))


def flat(body: Sequence[Statement]) -> list[tuple[Statement, tuple[str, ...]]]:
    return [(s, tuple(loop.axis for loop in outer)) for s, outer in statements(body)]


@settings(max_examples=60, deadline=None)
@given(placements(), st.booleans())
def test_every_operator_runs_once_and_every_output_is_stored_once(found, move) -> None:
    of, plan = found
    buffers, body = place(of, plan.expression, plan.dead, move)
    every_statement = [s for s, _ in flat(body)]
    computed = [s.buffer for s in every_statement if isinstance(s, Compute)]
    assert sorted(computed) == sorted(o.out for o in of.chain.operators)
    stored = [s.tensor for s in every_statement if isinstance(s, Store)]
    assert sorted(stored) == sorted(of.chain.outputs)
    begun = [s.buffer for s in every_statement if isinstance(s, Init)]
    assert sorted(begun) == sorted(o.out for o in of.chain.operators if o.reduce != "none")
    names = [b.name for b in buffers]
    assert len(set(names)) == len(names)


@settings(max_examples=60, deadline=None)
@given(placements(), st.booleans())
def test_nothing_is_read_before_it_is_there(found, move) -> None:
    of, plan = found
    buffers, body = place(of, plan.expression, plan.dead, move)
    known: set[str] = set()
    for s, _ in flat(body):
        if isinstance(s, (Load, Init)):
            known.add(s.buffer)
        elif isinstance(s, SaveOld):
            assert s.buffer in known
            known.add(s.old)
        elif isinstance(s, Compute):
            assert {r.tensor for r in reads(s.body)} <= known
            assert s.operator.reduce == "none" or s.buffer in known
            known.add(s.buffer)
        elif isinstance(s, Repair):
            assert {s.buffer, s.old, s.new} <= known
        else:
            assert isinstance(s, Store)
            assert s.buffer in known
    assert known <= {b.name for b in buffers}


@settings(max_examples=60, deadline=None)
@given(placements())
def test_dead_loops_are_dropped_and_the_grid_is_the_nest_of_bound_loops(found) -> None:
    of, plan = found
    body = plan.placed[1]
    alive = {loop.axis for loop in loops(body)}
    assert alive <= (set(plan.expression.axes) - plan.dead) | set(of.batch)
    grid = (*of.batch, *(a for a in plan.expression.grid if a not in plan.dead))
    assert tuple(loop.axis for loop in loops(body) if loop.kind == "grid") == grid
    for a in grid:  # one loop inside the other, around everything
        assert len(body) == 1
        assert isinstance(body[0], Loop)
        assert body[0].axis == a
        body = body[0].body


@settings(max_examples=60, deadline=None)
@given(placements())
def test_loads_stand_at_the_outermost_loop_that_indexes_them(found) -> None:
    of, plan = found
    grid = {*of.batch, *plan.expression.grid}
    for s, outer in flat(plan.placed[1]):
        if isinstance(s, Load):
            used = {a for i in s.read.indices for a in i.axes}
            assert not outer or outer[-1] in used | grid
        if isinstance(s, Store) and outer:
            o = of.chain.operator(s.tensor)
            assert outer[-1] in {*o.axes} | grid or not set(outer) & set(o.over)


def moved_bytes(of: Program, plan: Plan, move: bool, tiles: dict[str, int]) -> int:
    """Bytes of all loads and stores, trip by trip."""
    buffers, body = place(of, plan.expression, plan.dead, move)
    schedule = Schedule(of.chain, plan.expression, tuple(tiles.items()), buffers, body)
    total = 0
    for s, outer in statements(body):
        if isinstance(s, (Load, Store)):
            tile = schedule.buffer(s.buffer)
            around = {loop.axis for loop in outer}
            n = BYTES[of.chain.tensor(tile.tensor).dtype]
            for dim in tile.dims:
                kept = dim.whole and not set(dim.index.axes) & around
                axis_tiles = [
                    abs(c) * (tiles.get(a, 1) * (schedule.trips(a) if kept else 1) - 1)
                    for a, c in dim.index.terms
                ]
                n *= 1 + sum(axis_tiles)
            for loop in outer:
                n *= schedule.trips(loop.axis)
            total += n
    return total


@settings(max_examples=60, deadline=None)
@given(placements(), st.data())
def test_moving_loads_and_stores_never_adds_bytes(found, data) -> None:
    of, plan = found
    tiles = {
        a: 8 if a in plan.dead else data.draw(st.sampled_from([2, 4]), label=a) for a in plan.axes
    }
    assert moved_bytes(of, plan, True, tiles) <= moved_bytes(of, plan, False, tiles)


def test_running_values_are_kept_before_they_move_and_repaired_after() -> None:
    buffers, body = place(listed("attention"), parse("m.n(k,h)"), "kh")
    inside = [s for s, outer in flat(body) if "n" in outer]
    order = {(type(s).__name__, getattr(s, "buffer", "")): i for i, s in enumerate(inside)}
    keep, step = order["SaveOld", "R"], order["Compute", "R"]
    assert keep < step
    for target in "ZU":
        assert step < order["Repair", target] < order["Compute", target]
    assert {b.name for b in buffers if b.name.endswith(OLD)} == {"R_old"}


def test_repairs_follow_what_moved_in_the_order_of_the_chain() -> None:
    """Kernels read as their chain does, and equal candidates stay equal text."""
    for name, targets in (("attention", "ZU"), ("softmax_in_place", ["Z", "O_sum"])):
        _, body = place(listed(name), parse("m.n(k,h)"), "kh")
        inside = [s for s, outer in flat(body) if "n" in outer]
        at = next(i for i, s in enumerate(inside) if isinstance(s, Compute) and s.buffer == "R")
        after = inside[at + 1 : at + 3]
        assert [s.buffer for s in after if isinstance(s, Repair)] == [*targets]


def test_a_dead_loop_needs_no_repair() -> None:
    _, body = place(listed("attention"), parse("m.n(k,h)"), "nkh")
    assert not [s for s, _ in flat(body) if isinstance(s, (SaveOld, Repair))]


def test_tiles_that_accumulate_under_an_outer_loop_are_kept_whole() -> None:
    buffers = {b.name: b for b in place(GEMM, parse("m.n(k,h)"))[0]}
    assert [d.whole for d in buffers["E"].dims] == [False, False, True]
    buffers = {b.name: b for b in place(GEMM, parse("mh.kn"))[0]}
    assert [d.whole for d in buffers["C"].dims] == [False, False, True]  # Fig. 6b
    buffers = {b.name: b for b in place(GEMM, parse("mh.nk"))[0]}
    assert not any(d.whole for b in buffers.values() for d in b.dims)  # Fig. 6a


def test_accumulators_are_held_in_float32() -> None:
    half = program(gemm(1, 8, 8, 8, 8, "float16"))
    held = {b.name: (b.dtype, b.level) for b in place(half, parse("mh.nk"))[0]}
    assert held["A"] == ("float16", "shared")
    assert held["C"] == held["E"] == ("float32", "register")


def test_two_reads_of_one_tensor_are_two_tiles() -> None:
    c = chain({"m": 4, "n": 4, "k": 8}, {"A": (4, "k")},
              ["C[m, n] = sum[k] A[m, k] * A[n, k]"])  # fmt: skip
    buffers, body = place(program(c), parse("mn.k"))
    assert [(b.name, b.tensor) for b in buffers[:2]] == [("A", "A"), ("A__2", "A")]
    assert len([s for s, _ in flat(body) if isinstance(s, Load)]) == 2


# --- placements that must compute the chain -------------------------------------------------

SHAPES = {"Q": "mk", "K": "nk", "V": "nh", "X": "mn", "Y": "mn"}
SCORES = "S[m, n] = sum[k] Q[m, k] * K[n, k]"


def agrees(c: Chain, options: dict[str, Sequence[int]]) -> None:
    """Every expression, bound and not, under every choice of tile sizes, computes the chain."""
    of = program(c)
    x = inputs(c)
    expected = evaluate(c, x)
    for expression in tilings(of.chain):
        for e in dict.fromkeys((expression, bind(of.chain, expression))):
            for sizes in every(*(options.get(a, [c.size(a)]) for a in e.axes)):
                tiles = dict(zip(e.axes, sizes, strict=True))
                dead = frozenset(a for a in tiles if tiles[a] >= c.size(a))
                found, _ = interpret(Plan(of, e, dead).schedule(tiles), x)
                for o in c.outputs:
                    np.testing.assert_allclose(
                        found[o], expected[o], rtol=1e-8, atol=1e-9, err_msg=f"{e} {tiles}"
                    )


MUST_AGREE = {
    "softmax under a mask": (
        SCORES, "R[m] = max[n] S[m, n] where n <= m", "P[m, n] = exp(S[m, n] - R[m])",
        "Z[m] = sum[n] P[m, n] where n <= m", "U[m, h] = sum[n] P[m, n] * V[n, h] where n <= m",
        "O[m, h] = U[m, h] / Z[m]",
    ),
    "rows with an empty domain": (
        SCORES, "R[m] = max[n] S[m, n] where n + 2 <= m", "P[m, n] = exp(S[m, n] - R[m])",
        "Z[m] = sum[n] P[m, n] where n + 2 <= m",
        "U[m, h] = sum[n] P[m, n] * V[n, h] where n + 2 <= m",
        "O[m, h] = select(Z[m] == 0.0, 0.0, U[m, h] / Z[m])",
    ),
    "a softmax down the columns": (
        SCORES, "R[n] = max[m] S[m, n]", "P[m, n] = exp(S[m, n] - R[n])",
        "O[m, h] = sum[n] P[m, n] * V[n, h]",
    ),
    "rows as long as an input says": (
        "R[m] = max[n] X[m, n] where n < 6.0 * Y[m, 0]", "P[m, n] = exp(X[m, n] - R[m])",
        "Z[m] = sum[n] P[m, n] where n < 6.0 * Y[m, 0]",
    ),
    "a third reduction": (
        "R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m])",
        "W[m] = sum[n] exp(X[m, n] - R[m]) * Y[m, n] / Z[m]",
    ),
    "a second reduction that is refused": (
        SCORES, "R[m] = max[n] abs(S[m, n])", "I[m, n] = floor(S[m, n] / R[m] * 127.0)",
        "O[m, h] = sum[n] I[m, n] * V[n, h]",
    ),
}  # fmt: skip
TILES = {"m": [3], "n": [2, 8], "k": [4], "h": [2, 4]}


@pytest.mark.parametrize(
    "name",
    [
        "softmax under a mask",
        "rows with an empty domain",
        "rows as long as an input says",
        "a softmax down the columns",
        "a third reduction",
        "a second reduction that is refused",
    ],
)
def test_every_placement_computes_the_chain(name: str) -> None:
    agrees(chain({"m": 6, "n": 8, "k": 4, "h": 4}, SHAPES, MUST_AGREE[name]), TILES)


@pytest.mark.parametrize(
    "lines",
    [
        (SCORES, "R[m] = max[n] S[m, n] where n <= m", "P[m, n] = exp(S[m, n] - R[m])",
         "Z[m] = sum[n] P[m, n] where n <= m",
         "O[m, h] = sum[n] P[m, n] / Z[m] * V[n, h] where n <= m"),
        ("R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m])",
         "W[m] = max[n] Y[m, n] - log(Z[m])"),
    ],
    ids=["two that move", "one that moves because another does"],
)  # fmt: skip
def test_a_moving_value_that_is_repaired_itself(lines: Sequence[str]) -> None:
    agrees(chain({"m": 6, "n": 8, "k": 4, "h": 4}, SHAPES, lines), TILES)


def test_a_row_whose_domain_begins_late() -> None:
    lines = ("Z[m] = sum[n] X[m, n] where m <= n", "W[m] = sum[n] X[m, n] / Z[m] where m <= n")
    agrees(chain({"m": 6, "n": 8}, SHAPES, lines), {"m": [3], "n": [2, 8]})


def test_a_domain_that_moves() -> None:
    lines = ("R[m] = max[n] X[m, n]",
             "Z[m] = sum[n] exp(X[m, n] - R[m]) where X[m, n] < R[m] - 0.5")  # fmt: skip
    agrees(chain({"m": 6, "n": 8}, SHAPES, lines), {"m": [3], "n": [2, 8]})


def test_a_maximum_of_a_map_with_a_domain() -> None:
    lines = ("R[m] = max[n] X[m, n]", "D[m, n] = Y[m, n] - R[m] where 3 <= n",
             "T[m] = max[n] D[m, n]")  # fmt: skip
    agrees(chain({"m": 6, "n": 8}, SHAPES, lines), {"m": [3], "n": [2, 8]})


def test_an_intermediate_of_three_products_that_is_kept_whole() -> None:
    c = named("three_products", {"m": 6, "k": 4, "n": 5, "h": 4, "p": 6})
    of = program(c)
    tiles = {"m": 4, "k": 4, "n": 2, "h": 2, "p": 4}
    schedule = Plan(of, parse("knhpm"), frozenset("k")).schedule(tiles)
    x = inputs(c)
    np.testing.assert_allclose(interpret(schedule, x)[0]["G"], evaluate(c, x)["G"])


# --- loops in parts -------------------------------------------------------------------------


def parted(of: Program, expression: str, axis: str, dead: Sequence[str] = ()) -> str:
    _, body = place(of, parse(expression), dead, split=axis)
    return notation(body, of.batch)


def test_parts_stand_inside_the_grid_and_are_combined_after() -> None:
    assert parted(GEMM, "mh.nk", "n") == "mh(n/n(k(L_A,L_B,C_C),L_D,C_E),G_E,S_E)"
    assert parted(GEMM, "m.n(k,h)", "n", "h") == "m(n/n(k(L_A,L_B,C_C),L_D,C_E),G_E,S_E)"


def test_what_every_part_loads_stays_in_the_part() -> None:
    assert parted(GEMM, "mh.nk", "n", "k") == "mh(n/(L_A,n(L_B,C_C,L_D,C_E)),G_E,S_E)"


def test_the_next_product_may_follow_the_combined_one() -> None:
    assert parted(GEMM, "mh.nk", "k", "n") == "mh(k/k(L_A,L_B,C_C),G_C,L_D,C_E,S_E)"


def test_combining_repairs_by_what_moved() -> None:
    of = listed("softmax_in_place")
    _, body = place(of, parse("mh.nk"), (), split="n")
    found = [s for s, _ in statements(body) if isinstance(s, Combine)]
    assert [(s.buffer, [r.new for r in s.repairs]) for s in found] == [
        ("R", []),
        ("Z", ["R"]),
        ("O_sum", ["R"]),
    ]
    shared = [s.buffer for s, _ in statements(body) if isinstance(s, StorePartial)]
    assert shared == ["R", "Z", "O_sum"]


@pytest.mark.parametrize(
    ("name", "expression", "axis", "reason"),
    [
        ("gemm", "mh.nk", "k", "'k' is not the outermost one"),
        ("gemm", "mh.kn", "n", "'n' is not the outermost one"),
    ],
)
def test_what_cannot_be_split_says_why(name, expression, axis, reason) -> None:
    of = GEMM if name == "gemm" else listed(name)
    with pytest.raises(Illegal, match=reason):
        place(of, parse(expression), (), split=axis)


def test_what_parts_compute_for_themselves_is_not_read_after_them() -> None:
    """T is made anew in every part; what runs once they have ended finds none of theirs."""
    lines = ["T[m] = tanh(w[m])", "E[m] = sum[n] X[m, n] * T[m]", "Y[m] = E[m] + T[m]"]
    of = program(chain({"m": 8, "n": 8}, {"X": "mn", "w": "m"}, lines))
    assert text("nm", of=of) == "nm(L_w,C_T,L_X,C_E),m(C_Y,S_Y)"
    with pytest.raises(Illegal, match="'T' is needed outside the parts of 'n'"):
        place(of, parse("nm"), (), split="n")


def test_a_result_that_all_parts_know_only_together_is_not_used_in_one() -> None:
    of = program(
        chain(
            {"m": 8, "n": 8},
            {"X": "mn"},
            ["Q[m] = sum[n] X[m, n]", "Y[m, n] = X[m, n] / (Q[m] + 9.0)"],
        )
    )
    with pytest.raises(Illegal, match="'Y' needs what only all parts of 'n' know"):
        place(of, parse("m.n"), (), split="n")


# --- reductions that need each other, wherever their loops stand ------------------------------

TOGETHER = {
    "a maximum over some of the axes that are summed": (
        {"X": "ph", "V": "hm"},
        ["R[h] = max[p] X[p, h]", "U[h] = sum[p, m] exp(X[p, h] - R[h]) * V[h, m]"],
        ("U",),
    ),
    "a tile that an earlier loop needs as well": (
        {"C": "mp", "B": "h"},
        ["A[m] = sum[p] C[m, p]", "E[m] = sum[h] B[h] * A[m]",
         "F[p, h] = max(B[h], 0.0) * B[h]"],
        ("A", "E", "F"),
    ),
    "a map whose reader is in another loop": (
        {"X": "pm", "Y": "mp"},
        ["C[m] = sum[p] Y[m, p]", "R[p] = max[m] X[p, m]", "P[p, m] = exp(X[p, m] - R[p])",
         "U[p] = sum[m] P[p, m] * C[m]"],
        ("U",),
    ),
    "a map of a maximum over all": (
        {"Y": "mp"},
        ["C[p] = sum[m] Y[m, p]", "R[] = max[p] C[p]", "P[p] = exp(C[p] - R[()])",
         "O[m] = sum[p] P[p] * m"],
        ("O",),
    ),
    "a sum that moves along another axis as well": (
        {"X": "ph", "Y": "pmh"},
        ["S[h] = sum[p, m] Y[p, m, h]", "T[h] = max[p] X[p, h] - S[h]"],
        ("T",),
    ),
    "a rolled maximum": (
        {"X": "mp", "Y": "mp"},
        ["R[m] = max[p] X[m, p]", "T[m] = max[p] exp(X[m, p] - R[m]) * Y[m, p]"],
        ("T",),
    ),
    "a sum that grows": (
        {"X": "mp"}, ["R[m] = max[p] X[m, p]", "Z[m] = sum[p] exp(R[m] - X[m, p])"], ("Z",)
    ),
    "an axis that nothing uses": (
        {"X": "p", "Y": "p"},
        ["T[p] = X[p] * Y[p]", "K[h, p] = select(h < 2, X[p], 0.0)"],
        ("T", "K"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sign", [0, -1, 1])
@pytest.mark.parametrize("name", TOGETHER)
def test_every_way_to_share_loops_is_right(name: str, sign: int) -> None:
    shapes, lines, outputs = TOGETHER[name]
    c = chain({"h": 3, "p": 5, "m": 4}, shapes, lines, outputs)
    x = inputs(c)
    assert right(c, {n: np.abs(a) * sign if sign else a for n, a in x.items()}) >= 3


JOINT = {
    "weights": ["Z[m] = sum[n] exp(X[m, n] - R[()])"],
    "weights along the other axis": ["Z[n] = sum[m] exp(X[m, n] - R[()])"],
    "a product of weights": ["U[m, h] = sum[n] exp(X[m, n] - R[()]) * V[n, h]"],
}


@pytest.mark.parametrize("name", JOINT)
def test_what_moves_along_a_loop_inside_its_target_s_as_well_is_final_there(name: str) -> None:
    """A maximum over two axes still moves when a sum over one of them has taken its iterations:
    repairs within that loop would leave its other tiles as they were."""
    lines = ["R[] = max[m, n] X[m, n]", *JOINT[name]]
    c = chain({"m": 3, "n": 4, "h": 2}, {"X": "mn", "V": "nh"}, lines)
    assert right(c, inputs(c)) > 5


def test_a_part_loads_its_own_tile_of_what_is_read_after_the_parts_too() -> None:
    """`I` joins the parts after a tile of B was loaded for `T`, which follows them."""
    of = program(
        from_json({
            "axes": {"n": 4, "k": 8},
            "tensors": {"X": {"shape": ["n", "k"]}, "B": {"shape": ["n"]}},
            "operators": ["Y[n] = sum[k] X[n, k]", "T[n] = tanh(B[n]) * 0.5",
                          "I[n, k] = X[n, k] * B[n]"],
            "outputs": ["Y", "T", "I"],
        })
    )  # fmt: skip
    plan = Plan(of, parse("n.k"), frozenset("n"), "k", 2)
    rng = np.random.default_rng(0)
    inputs = {n: rng.normal(size=of.chain.shape(n)) for n in of.chain.inputs}
    computed, _ = interpret(plan.schedule({"n": 4, "k": 2}), inputs)
    for name, expected in evaluate(of.chain, inputs).items():
        np.testing.assert_allclose(computed[name], expected, err_msg=name)
