"""Plans: counts over arrays of tile sizes equal a walk over the statements of each schedule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import dependences
from mcfuser.chain import BYTES, Chain, attention, flops, from_json, gemm, to_json
from mcfuser.expr import Call, walk
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import SAMPLES, Plan, blocks, footprint, sizes_of, splits, traffic, work
from mcfuser.space.program import program
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import (
    Combine,
    Compute,
    Load,
    Loop,
    Repair,
    Statement,
    Store,
    StorePartial,
    loops,
)
from tests.support.chains import LINES, chain, inputs, named
from tests.support.triton_cases import chain_named

DTYPES = ["float16", "bfloat16", "float32"]


@dataclass
class Walk:
    """Runs the loops of a schedule iteration by iteration and adds up what each statement would
    touch."""

    schedule: Schedule
    bytes: int = 0
    flops: int = 0
    blocks: set[tuple[int, ...]] = field(default_factory=set)

    def run(self, body: tuple[Statement, ...], at: dict[str, int], grid: tuple[int, ...]) -> None:
        self.blocks.add(grid) if not any(self._grid(s) for s in body) else None
        for s in body:
            if isinstance(s, Loop):
                step = self.schedule.tile(s.axis)
                step *= self.schedule.span(s.axis) if s.kind == "split" else 1
                for trip in self.schedule.iterations(s, at):
                    iteration = (*grid, trip) if s.kind in ("grid", "split") else grid
                    self.run(s.body, at | {s.axis: trip * step}, iteration)
            elif isinstance(s, (Load, Store)):
                tensor = self.schedule.buffer(s.buffer).tensor
                dtype = self.schedule.chain.tensor(tensor).dtype
                self.bytes += self._elements(s.buffer, at) * BYTES[dtype]
            elif isinstance(s, Compute):
                tile = prod(self.schedule.tile(a) for a in s.operator.related)
                self.flops += (calls(s.body) + (s.operator.reduce != "none")) * tile
            elif isinstance(s, Repair):
                self.flops += calls(s.h) * self._elements(s.buffer, at)
            elif isinstance(s, StorePartial):
                self.bytes += 4 * self._elements(s.buffer, at)
            elif isinstance(s, Combine):
                for name in (s.buffer, *(r.new for r in s.repairs)):
                    self.bytes += 4 * self.schedule.parts * self._elements(name, at)
                each = 1 + sum(calls(r.h) for r in s.repairs)
                self.flops += self.schedule.parts * each * self._elements(s.buffer, at)

    @staticmethod
    def _grid(s: Statement) -> bool:
        return isinstance(s, Loop) and s.kind in ("grid", "split")

    def _elements(self, name: str, at: dict[str, int]) -> int:
        """Positions of the tile that lie in the loops' present iteration, each a set of indices."""
        total = 1
        for dim in self.schedule.buffer(name).dims:
            spots = {dim.index.offset}
            for a, c in dim.index.terms:
                n = self.schedule.tile(a)
                if dim.whole and a not in at:
                    n *= self.schedule.trips(a)
                spots = {min(spots) + min(0, c * (n - 1)), max(spots) + max(0, c * (n - 1))}
            total *= max(spots) - min(spots) + 1
        return total


def calls(e) -> int:
    return sum(isinstance(n, Call) for n in walk(e))


def walked(schedule: Schedule) -> Walk:
    found = Walk(schedule)
    found.run(schedule.body, {}, ())
    return found


def typed(c: Chain, dtype: str) -> Chain:
    """The chain with inputs and outputs stored in a dtype."""
    document = to_json(c)
    for name in (*c.inputs, *c.outputs):
        document["tensors"][name]["dtype"] = dtype  # type: ignore[index]
    return from_json(document)


EXTENTS = st.fixed_dictionaries({a: st.integers(1, 9 if a != "b" else 2) for a in "bmnkhpc"})


@st.composite
def plans(draw: st.DrawFn, divide: bool = False, split: bool = False) -> tuple[Plan, np.ndarray]:
    """A plan, and some of the tile sizes that it stands for [candidates, axes]."""
    name = draw(st.sampled_from(sorted(LINES)))
    sizes = st.sampled_from([1, 2, 4, 6]) if divide else st.integers(1, 9)
    extents = {a: draw(sizes if a != "b" else st.integers(1, 2)) for a in "bmnkhpc"}
    of = program(typed(named(name, extents), draw(st.sampled_from(DTYPES))))
    expression = draw(st.sampled_from(tilings(of.chain)))
    if draw(st.booleans()):
        expression = bind(of.chain, expression)
    dead = {a for a in expression.axes if of.chain.size(a) == 1}
    dead |= {a for a in expression.axes if draw(st.booleans())}
    plan = Plan(of, expression, frozenset(dead))
    ways = splits(plan)
    if split and ways and draw(st.booleans()):
        plan = replace(plan, split=draw(st.sampled_from(ways)), parts=draw(st.integers(2, 4)))

    def size(a: str) -> int:
        extent = of.chain.size(a)
        if a in plan.dead:
            return extent
        options = [t for t in range(1, extent) if not divide or extent % t == 0]
        return draw(st.sampled_from(options))

    rows = [[size(a) for a in plan.axes] for _ in range(draw(st.integers(1, 3)))]
    return plan, np.asarray(rows, np.int64)


def exact(schedule: Schedule) -> bool:
    """No iterations are averaged: no loop has bounds, and every part has as many iterations."""
    if any(loop.lo or loop.hi for loop in loops(schedule.body)):
        return False
    split = schedule.split
    return split is None or schedule.trips(split.axis) % schedule.parts == 0


@settings(max_examples=40, deadline=None)
@given(plans(split=True))
def test_counts_equal_a_walk_over_the_schedule(found) -> None:
    plan, tiles = found
    predicted = zip(traffic(plan, tiles), work(plan, tiles), blocks(plan, tiles),
                    footprint(plan, tiles), strict=True)  # fmt: skip
    for row, (moved, computed, grid, need) in zip(tiles, predicted, strict=True):
        schedule = plan.schedule(dict(zip(plan.axes, row.tolist(), strict=True)))
        counted = walked(schedule)
        if exact(schedule):
            assert (moved, computed) == (counted.bytes, counted.flops)
        elif schedule.split is None:
            assert moved == pytest.approx(counted.bytes, rel=0.35)
            assert computed == pytest.approx(counted.flops, rel=0.35)
        elif not any(loop.lo or loop.hi for loop in loops(schedule.body)):
            assert moved >= counted.bytes and computed >= counted.flops
        deepest = max(len(b) for b in counted.blocks)
        assert grid == sum(len(b) == deepest for b in counted.blocks)
        maps = {o.out for o in plan.program.chain.operators if o.reduce == "none"}
        held = sum(
            prod(schedule.shape(b.name)) * BYTES[plan.program.chain.tensor(b.tensor).dtype]
            for b in schedule.buffers
            if b.tensor not in maps or any(d.whole for d in b.dims)
        )
        assert need == held


def tensor_bytes(c: Chain, counts: dict[str, int]) -> int:
    return sum(n * BYTES[c.tensor(t).dtype] for t, n in counts.items())


@settings(max_examples=40, deadline=None)
@given(plans(divide=True))
def test_where_tiles_divide_the_bytes_are_those_that_the_interpreter_touches(found) -> None:
    plan, tiles = found
    schedule = plan.schedule(dict(zip(plan.axes, tiles[0].tolist(), strict=True)))
    c = plan.program.chain
    ends = [i for loop in loops(schedule.body) for i in (*loop.lo, *loop.hi)]
    if any(SAMPLES % schedule.trips(a) for i in ends for a in i.axes):
        return  # an average over samples of iterations, not over all of them
    _, count = interpret(schedule, inputs(c))
    assert count.padded == 0
    moved = tensor_bytes(c, count.loaded) + tensor_bytes(c, count.stored)
    assert traffic(plan, tiles[:1])[0] == moved


@settings(max_examples=40, deadline=None)
@given(plans())
def test_elsewhere_they_are_those_and_the_padding(found) -> None:
    plan, tiles = found
    c = plan.program.chain
    if len({c.tensor(t).dtype for t in (*c.inputs, *c.outputs)}) > 1:
        return
    schedule = plan.schedule(dict(zip(plan.axes, tiles[0].tolist(), strict=True)))
    if not exact(schedule):
        return
    _, count = interpret(schedule, inputs(c))
    elements = sum(count.loaded.values()) + sum(count.stored.values()) + count.padded
    width = BYTES[c.tensor(c.outputs[0]).dtype]
    assert traffic(plan, tiles[:1])[0] == elements * width


@pytest.mark.parametrize("expression", ["mh.nk", "m.n(k,h)", "mh.kn"])
def test_products_that_compute_nothing_twice_cost_their_flops(expression: str) -> None:
    c = gemm(2, 32, 32, 32, 16)
    plan = Plan(program(c), parse(expression), frozenset("h"))
    tiles = np.asarray([[16, 16, 8, 16]], np.int64)
    assert work(plan, tiles)[0] == flops(c)
    schedule = plan.schedule(dict(zip("mnkh", tiles[0].tolist(), strict=True)))
    _, count = interpret(schedule, inputs(c))
    assert count.flops == flops(c)


def test_an_unbound_loop_of_h_recomputes_the_first_product() -> None:
    c = gemm(1, 32, 32, 32, 32)
    plan = Plan(program(c), parse("mh.nk"), frozenset())
    tiles = np.asarray([[16, 16, 16, 16], [16, 16, 16, 8]], np.int64)
    first = 2 * 32 * 32 * 32
    assert work(plan, tiles).tolist() == [2 * first + first, 4 * first + first]


def test_bytes_multiply_by_every_grid_loop() -> None:
    c = gemm(3, 64, 32, 32, 64, "float16")
    plan = Plan(program(c), parse("mh.nk"), frozenset())
    m, n, k, h = tile = (16, 16, 16, 32)
    trips = (64 // m) * (64 // h) * 3
    a = m * k * (32 // n) * (32 // k) * trips
    b = k * n * (32 // n) * (32 // k) * trips
    d = n * h * (32 // n) * trips
    e = m * h * trips
    assert traffic(plan, np.asarray([tile], np.int64))[0] == 2 * (a + b + d + e)
    assert blocks(plan, np.asarray([tile], np.int64))[0] == trips


def test_a_map_costs_no_fast_memory_unless_it_is_kept_whole() -> None:
    plan = Plan(program(attention(1, 64, 64, 32, 32)), parse("m.n(k,h)"), frozenset("kh"))
    tiles = np.asarray([[16, 16, 32, 32]], np.int64)
    q, k, v = 16 * 32, 16 * 32, 16 * 32
    s, u, rows = 16 * 16, 16 * 32, 3 * 16  # R, its old value, and Z
    assert footprint(plan, tiles)[0] == 4 * (q + k + v + s + u + rows)


def test_a_program_is_hoisted_folded_and_rolled() -> None:
    of = program(named("softmax_in_place", dict.fromkeys("mnkh", 8)))
    assert {d.moving for d in dependences(of.chain)} == {"R"}
    assert {(t, m) for t, m, _ in of.repairs} == {("Z", "R"), ("O_sum", "R")}


def test_a_sum_over_less_than_its_maximum_is_not_rolled() -> None:
    """The maximum over m and n moves in every iteration of m inside one of n: what it was when a
    tile of U was last visited is gone."""
    of = program(chain_named("joint", dict.fromkeys("bmnkh", 8)))
    rolled = {o.out: of.rolled(o, "n") for o in of.chain.operators if o.out in ("Z", "U")}
    assert rolled == {"Z": True, "U": False}


def test_axes_of_one_batch_are_no_loop() -> None:
    assert program(gemm(1, 8, 8, 8, 8)).batch == ()
    assert program(gemm(2, 8, 8, 8, 8)).batch == ("b",)


def test_plans_print_their_statements() -> None:
    plan = Plan(program(gemm(2, 8, 8, 8, 8)), parse("mh.nk"), frozenset("k"))
    assert plan.notation == "mh(L_A,n(L_B,C_C,L_D,C_E),S_E)"


@pytest.mark.parametrize(
    ("domain", "taken"),
    [
        ("n <= m", [1, 2, 3, 4]),
        ("n < m", [1, 2, 3, 4]),
        ("n <= m + 1", [2, 3, 4, 4]),
        ("n <= m and m - n < 3", [1, 2, 2, 2]),
        ("m <= n", [4, 3, 2, 1]),
        ("n == 3", [1, 1, 1, 1]),
    ],
)
def test_bounds_admit_a_share_of_a_loops_iterations(domain: str, taken: list[int]) -> None:
    """Four iterations, at each of the four of m."""
    c = chain({"m": 16, "n": 16}, {"X": "mn"}, [f"R[m] = max[n] X[m, n] where {domain}"])
    plan = Plan(program(c), parse("m.n"), frozenset())
    loop = next(x for x in loops(plan.placed[1]) if x.axis == "n")
    sizes = sizes_of(plan, np.asarray([[4, 4], [4, 16]]))
    shares = sizes.taken_shares(loop)
    assert shares.shape == (2, SAMPLES)
    assert shares[0].tolist() == [n / 4 for n in taken for _ in range(SAMPLES // 4)]
    assert sizes.iterations(loop).tolist() == [sum(taken) / 4, 1.0]


def test_a_window_loads_what_its_indices_span() -> None:
    c = chain({"m": 8, "k": 3, "c": 4, "h": 4}, {"A": (10, "c"), "B": "kch"},
              ["Y[m, h] = sum[k, c] A[m + k, c] * B[k, c, h]"])  # fmt: skip
    plan = Plan(program(c), parse("mh.kc"), frozenset("kch"))
    tiles = np.asarray([[{"m": 4, "k": 3, "c": 4, "h": 4}[a] for a in plan.axes]], np.int64)
    assert traffic(plan, tiles)[0] == 4 * (2 * (6 * 4) + 2 * (3 * 4 * 4) + 2 * (4 * 4))
