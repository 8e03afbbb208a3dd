"""Pruning: the paper's numbers, each rule by itself, and what no rule may do."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import product as every
from math import ceil, prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import attention, from_json, gemm
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.expression import parse
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Ints, Plan, blocks, footprint
from mcfuser.space.prune import (
    MOST,
    RULES,
    SLACK,
    Space,
    deduplicate,
    distinct,
    fast_memory,
    intermediates,
    padding,
    parted,
    prune,
    sample,
    space,
)
from mcfuser.space.reference import evaluate
from mcfuser.space.tiles import tile_sizes
from tests.support.chains import LINES, chain, named
from tests.support.paths import CHAINS
from tests.support.random_chains import cases

A100, H200 = CATALOGUE["nvidia/a100"], CATALOGUE["nvidia/h200"]
PAPER = gemm(1, 1024, 1024, 512, 512, "float16")
EXAMPLES = sorted((CHAINS).glob("*.json"))


def texts(found: Space) -> list[str]:
    return [str(e) for e in found.expressions]


# --- the paper's example, section III-C and Fig. 7 ------------------------------------------


def test_the_papers_example() -> None:
    whole = space(PAPER)
    assert len(whole.expressions) == 26
    assert whole.candidates == 109_051_904
    _, steps = prune(whole, A100)
    assert [s.rule for s in steps] == ["rule1", "rule2", "rule3", "rule4"]
    assert [s.expressions for s in steps[:2]] == [
        ("mh.nk", "mh.kn", "hm.nk", "hm.kn", "m.n(k,h)"),
        ("mh.nk", "hm.nk", "m.n(k,h)"),
    ]
    assert [len(s.expressions) for s in steps] == [5, 3, 3, 3]
    assert [s.candidates for s in steps[:3]] == [5 * 2**22, 3 * 2**22, 3 * 7 * 7 * 6 * 6]
    assert steps[2].candidates < 0.01 * steps[1].candidates  # the paper: 99 % are discarded
    assert 1_000 < steps[3].candidates < steps[2].candidates


def test_the_ablation_has_deep_tilings_only_and_keeps_dead_loops() -> None:
    whole = space(PAPER, "chimera")
    assert len(whole.expressions) == 24
    found, steps = prune(whole, A100)
    assert steps[0].expressions == ("mh.nk", "mh.kn", "hm.nk", "hm.kn")
    assert steps[1].expressions == ("mh.nk", "hm.nk")
    assert all(not plan.dead for plan, _ in found.tables or ())


def test_the_ablation_drops_loops_that_no_tile_size_could_iteration() -> None:
    found, _ = prune(space(gemm(1, 64, 64, 1, 64), "chimera"), A100)
    assert {plan.dead for plan, _ in found.tables or ()} == {frozenset("k")}


def test_counting_takes_no_time() -> None:
    start = time.process_time()
    prune(space(PAPER), A100)
    assert time.process_time() - start < 2.0


# --- every chain ----------------------------------------------------------------------------

EXTENTS = st.fixed_dictionaries(
    {a: st.sampled_from([1, 7, 16, 17, 32, 40, 64, 100]) for a in "bmnkhpc"}
)


@st.composite
def chains(draw: st.DrawFn):
    name = draw(st.sampled_from(sorted(LINES)))
    return named(name, draw(EXTENTS))


def pairs(found: Space) -> set[tuple[object, ...]]:
    """Every candidate, one by one."""
    if found.tables is None:
        return set(every(found.expressions, *found.options))
    return {(plan.expression, *map(int, row)) for plan, tiles in found.tables for row in tiles}


def same(one: Space, two: Space) -> bool:
    return (one.expressions, one.options) == (two.expressions, two.options) and (
        one.tables is None or pairs(one) == pairs(two)
    )


@settings(max_examples=40, deadline=None)
@given(chains(), st.sampled_from(["mcfuser", "chimera"]), st.sampled_from([A100, H200]))
def test_every_rule_narrows_keeps_one_and_is_done_after_once(c, kind, device) -> None:
    found = space(c, kind)
    for name, rule in RULES:
        narrowed = rule(found, device)
        assert 1 <= narrowed.candidates <= found.candidates, name
        assert narrowed.expressions
        assert all(narrowed.options)
        assert same(rule(narrowed, device), narrowed), name
        assert narrowed.program == found.program
        found = narrowed


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["linear", "log_sum_exp", "rms_norm_projection", "layer_norm"]), EXTENTS)
def test_counting_agrees_with_enumeration(name, extents) -> None:
    found = space(named(name, extents))
    for rule_name, rule in [("none", lambda s, d: s), *RULES]:
        found = rule(found, A100)
        assert found.candidates == len(pairs(found)), rule_name
        if found.tables is not None:
            assert found.candidates == sum(len(tiles) for _, tiles in found.tables)


@settings(max_examples=40, deadline=None)
@given(chains())
def test_a_plan_has_the_candidates_whose_dead_loops_are_its(c) -> None:
    found, _ = prune(space(c), A100)
    for plan, tiles in found.tables or ():
        for row in tiles:
            dead = {a for a, t in zip(found.axes, row, strict=True) if t >= c.size(a)}
            assert plan.dead == dead


# --- one rule by itself ---------------------------------------------------------------------


def test_rule_1_keeps_one_order_of_what_is_not_bound() -> None:
    found = replace(space(PAPER), expressions=tuple(map(parse, ["mhnk", "mnhk", "mnkh", "nmkh"])))
    assert texts(deduplicate(found, A100)) == ["mh.nk"]


def test_rule_2_drops_reduced_loops_outside_kept_ones() -> None:
    found = replace(space(PAPER), expressions=tuple(map(parse, ["mh.nk", "mh.kn", "m.n(k,h)"])))
    assert texts(intermediates(found, A100)) == ["mh.nk", "m.n(k,h)"]


def test_rule_2_lets_an_output_keep_its_tiles() -> None:
    # h iterations inside n, which E is reduced over; but E is what is stored, no intermediate
    found = replace(space(PAPER), expressions=(parse("m.nhk"),))
    assert texts(intermediates(found, A100)) == ["m.nhk"]


def test_rule_2_keeps_all_where_it_would_keep_none() -> None:
    found = replace(space(PAPER), expressions=(parse("mh.kn"),))
    assert texts(intermediates(found, A100)) == ["mh.kn"]


@pytest.mark.parametrize(
    ("extent", "kept"),
    [
        (1, [1]),
        (64, [16, 32, 64]),
        (96, [16, 32, 48, 64, 96]),
        (40, [16, 32, 40]),
        (100, [16, 32, 64, 100]),
        (197, [16, 32, 64, 128, 197]),
        (200, [16, 32, 64, 128, 200]),
        (577, [16, 32, 64, 128, 256, 512, 577]),
        (768, None),
    ],
)
def test_rule_3_allows_no_padding_of_powers_of_two_and_5_percent_of_others(extent, kept) -> None:
    """And powers of two where they pad no more than the extent does as one tile."""
    c = gemm(1, extent, 16, 16, 16)
    sizes = padding(space(c), A100).options[0]

    def waste(t: int) -> float:
        return (ceil(extent / t) * t - extent) / extent

    whole = [2**i for i in range(4, 11)]
    alone = waste(next(w for w in [1, 2, 4, 8, *whole] if w >= extent))
    limit = 0.0 if extent in whole else 0.05
    good = [t for t in tile_sizes(extent) if waste(t) <= limit]
    powers = [t for t in tile_sizes(extent) if t in whole and waste(t) <= alone]
    assert list(sizes) == sorted({*good, *powers})
    if kept is not None:
        assert list(sizes) == kept


def needs(found: Space) -> list[float]:
    return [n for plan, tiles in found.tables or () for n in footprint(plan, tiles)]


def test_rule_4_keeps_what_fits_with_a_fifth_of_slack() -> None:
    narrowed = padding(space(PAPER), A100)
    unlimited = fast_memory(narrowed, replace(A100, fast=10**12))
    assert unlimited.candidates == narrowed.candidates
    limited = fast_memory(narrowed, A100)
    fits = [n for n in needs(unlimited) if n <= SLACK * A100.fast]
    assert sorted(needs(limited)) == sorted(fits)
    assert fast_memory(narrowed, H200).candidates > limited.candidates


def test_rule_4_keeps_the_smallest_where_none_fits() -> None:
    narrowed = padding(space(PAPER), A100)
    tiny: Device = replace(A100, fast=16)
    limited = fast_memory(narrowed, tiny)
    assert limited.candidates >= 1
    assert set(needs(limited)) == {min(needs(fast_memory(narrowed, A100)))}


def test_rule_4_keeps_every_other_size_of_the_longest_axes_where_too_many_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = MOST // 8
    monkeypatch.setattr("mcfuser.space.prune.MOST", most)
    narrowed = padding(deduplicate(space(gemm(1, 24_000, 24_000, 64, 64)), A100), A100)
    limited = fast_memory(narrowed, replace(A100, fast=10**12))
    assert most // 8 < limited.candidates <= most < MOST < narrowed.candidates
    for before, after in zip(narrowed.options, limited.options, strict=True):
        assert set(before) >= set(after) and (len(before) < 9 or 16 < len(after) < len(before))
        assert {t for t in before if t & (t - 1) == 0} | {before[-1]} <= set(after)
    used = {tuple(row) for _, tiles in limited.tables or () for row in tiles.tolist()}
    assert used == set(every(*limited.options))


def test_rule_4_looks_once_at_plans_that_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most expressions of eight loops differ in loops of one trip alone."""
    looked = []

    def counted(plan: Plan, tiles: Ints) -> Ints:
        looked.append(plan)
        return footprint(plan, tiles)

    monkeypatch.setattr("mcfuser.space.prune.footprint", counted)
    extents = {"m": 2, "i": 2, "j": 2, "l": 32, "n": 2, "p": 2, "k": 32}
    out = "mijlnp"
    upsampled = chain(extents, {"X": "knp", "W": "kmijl"},
                      [f"C[{', '.join(out)}] = sum[k] X[k, n, p] * W[k, m, i, j, l]"])  # fmt: skip
    left = fast_memory(padding(deduplicate(space(upsampled), A100), A100), A100)
    assert left.tables is not None
    assert len(looked) * 3 < len(left.tables)
    limit = SLACK * A100.fast
    for plan, tiles in left.tables[::97]:
        assert (footprint(plan, tiles) <= limit).all()
        dead = [i for i, a in enumerate(plan.axes) if a in plan.dead]
        assert (tiles[:, dead] == [upsampled.size(plan.axes[i]) for i in dead]).all()
    assert {p.drawn for p, _ in distinct(left).tables or ()} == {p.drawn for p, _ in left.tables}


def dead_rows(a: str, rows: dict[str, int]) -> set[str]:
    """The sets of rows with one trip that are left of a product with these rows in its result."""
    out = "".join(rows)
    product = chain({**rows, "n": 32, "k": 32}, {"A": a, "B": "kn"},
                    [f"C[{', '.join(out)}, n] = sum[k] A[{', '.join(a)}] * B[k, n]"])  # fmt: skip
    found, _ = prune(space(product), A100)
    return {"".join(r for r in out if r in plan.dead) for plan, _ in found.tables or ()}


def test_rows_that_are_computed_alike_are_tiled_from_the_inside() -> None:
    """As windows of a picture are: in the order of what is read, or of the result."""
    rows = {"m": 8, "i": 8, "j": 7, "l": 7}
    assert dead_rows("mijlk", rows) == {"", "l", "jl", "ijl"}
    assert dead_rows("mjilk", rows) == {"", "l", "jl", "il", "ijl"}
    assert dead_rows("mik", {"m": 32, "i": 8}) == {"", "m", "i", "mi"}  # two: every way


def test_rows_of_windows_are_tiled_in_every_way() -> None:
    found, _ = prune(space(chain(
        {"m": 8, "i": 8, "j": 8, "n": 32, "k": 32, "s": 3},
        {"A": (10, "i", "j", "k"), "B": "skn"},
        ["C[m, i, j, n] = sum[k, s] A[m + s, i, j, k] * B[s, k, n]"],
    )), A100)  # fmt: skip
    dead = {frozenset("mij") & plan.dead for plan, _ in found.tables or ()}
    assert frozenset("m") in dead and frozenset("ij") in dead


# --- equal candidates -----------------------------------------------------------------------


def candidates(found: Space) -> set[object]:
    return {
        (plan.placed, tuple(map(int, row))) for plan, tiles in found.tables or () for row in tiles
    }


@settings(max_examples=30, deadline=None)
@given(chains())
def test_candidates_of_equal_statements_are_one(c) -> None:
    found, _ = prune(space(c), A100)
    merged = distinct(found)
    assert merged.candidates == len(candidates(found))
    assert candidates(merged) == candidates(found)


def test_candidates_of_the_ablation_are_not_lost() -> None:
    found, _ = prune(space(PAPER, "chimera"), A100)
    assert distinct(found).candidates == len(candidates(found))


# --- what people give -----------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_have_candidates(path: Path) -> None:
    found, _ = prune(space(from_json(json.loads(path.read_text()))), A100)
    assert distinct(found).candidates >= 1
    plan, tiles = (found.tables or ())[0]
    assert plan.schedule(dict(zip(plan.axes, tiles[0].tolist(), strict=True))).body


@pytest.mark.parametrize("m", [1, 3, 127, 197, 4096])
def test_decode_and_odd_lengths_keep_candidates(m: int) -> None:
    found, _ = prune(space(attention(4, m, 197, 64, 64, "float16")), A100)
    assert found.candidates >= 1
    assert np.all(np.concatenate([t for _, t in found.tables or ()]) >= 1)


def test_three_products_are_counted() -> None:
    c = named("three_products", dict.fromkeys("mknhp", 256))
    whole = space(c)
    assert whole.candidates == len(whole.expressions) * prod(len(o) for o in whole.options)
    assert len(whole.expressions) > 120


# --- parts, samples, and chains at random ---------------------------------------------------


def test_loops_go_to_parts_where_blocks_are_few() -> None:
    pruned, _ = prune(space(gemm(1, 512, 512, 256, 256, "float16")), H200)
    merged = distinct(pruned)
    found = parted(merged, H200)
    assert (found.tables or ())[0] == (merged.tables or ())[0]
    split = [(p, t) for p, t in found.tables or () if p.split is not None]
    assert {p.parts for p, _ in split} == {2, 4, 8, 16, 32}
    assert any((blocks(p, t) > H200.units).any() for p, t in split)  # more than a device full
    for plan, tiles in split:
        whole = blocks(replace(plan, split=None, parts=1), tiles)
        assert (whole < H200.units).all() and (blocks(plan, tiles) <= 2 * H200.units).all()
        axis = plan.axes.index(plan.split or "")
        trips = -(-plan.program.chain.size(plan.split or "") // tiles[:, axis])
        assert (-(-trips // -(-trips // plan.parts)) == plan.parts).all()  # none is empty


def test_a_full_grid_is_not_split() -> None:
    pruned, _ = prune(space(gemm(132, 256, 256, 64, 64, "float16")), H200)
    assert not any(p.split for p, _ in parted(distinct(pruned), H200).tables or ())


def test_the_ablation_has_no_parts() -> None:
    pruned, _ = prune(space(gemm(1, 512, 512, 256, 256, "float16"), "chimera"), H200)
    assert not any(p.split for p, _ in parted(distinct(pruned), H200).tables or ())


def test_samples_are_drawn_without_a_list_of_all() -> None:
    whole = space(PAPER)
    start = time.process_time()
    drawn = sample(whole, 1000, seed=3)
    assert time.process_time() - start < 5.0
    assert sum(len(tiles) for _, tiles in drawn) == 1000
    assert len({str(plan.expression) for plan, _ in drawn}) == 26
    for plan, tiles in drawn:
        for row in tiles.tolist():
            assert all(t in o for t, o in zip(row, whole.options, strict=True))
            assert whole.dead(dict(zip(whole.axes, row, strict=True))) == plan.dead
    again = sample(whole, 1000, seed=3)
    assert [t.tolist() for _, t in again] == [t.tolist() for _, t in drawn]


def test_samples_of_a_pruned_space_are_its_candidates() -> None:
    pruned, _ = prune(space(PAPER), A100)
    every_row = {(p, tuple(t)) for p, rows in pruned.tables or () for t in rows.tolist()}
    drawn = [(p, tuple(t)) for p, rows in sample(pruned, 500) for t in rows.tolist()]
    assert set(drawn) <= every_row
    assert len(set(drawn)) > 350  # of 1,889, with repetitions
    few = replace(pruned, tables=tuple((p, t[:2]) for p, t in (pruned.tables or ())[:3]))
    assert {p for p, _ in sample(few, 100)} == {p for p, _ in few.tables or ()}


@settings(max_examples=12, deadline=None)
@given(cases(high=40), st.integers(0, 1000))
def test_no_rule_throws_away_every_legal_candidate(case, seed) -> None:
    """What is left of a random chain's space is placed, and computes the chain."""
    c = case.chain
    found, _ = prune(space(c), H200)
    assert found.candidates
    plan, tiles = sample(found, 1, seed)[0]
    rng = np.random.default_rng(seed)
    given_ = {n: rng.standard_normal(c.shape(n)) for n in c.inputs}
    row = dict(zip(plan.axes, tiles[0].tolist(), strict=True))
    results, _ = interpret(plan.schedule(row), given_)
    expected = evaluate(c, given_)
    for name in c.outputs:
        scale = np.abs(expected[name]).max() + 1e-30
        np.testing.assert_allclose(results[name] / scale, expected[name] / scale, atol=1e-9)
