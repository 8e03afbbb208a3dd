"""What was best for a chain is tried first for one of the same structure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from mcfuser.backends.cpu.backend import CPU as THE_CPU
from mcfuser.backends.cpu.builder import SourceBuilder
from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.request import Measured
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.tune.expected import pruned
from mcfuser.tune.layers import LayeredCache
from mcfuser.tune.related import (
    BEST,
    NEAREST,
    Relative,
    carried,
    distance,
    fastest,
    nearest,
    structure,
)
from mcfuser.tune.tried import Tried, tried
from mcfuser.tune.tuned import Cache, MemoryCache, RetuneCache, Tuned, TuneOptions
from mcfuser.tune.tuner import tune
from mcfuser_db import Storage
from tests.support.benches import HashBench

CPU = device_named("cpu")
FIXED = Device("cpu", "cpu", "haswell", 2, (("float32", 2e11),), 5e10, 1 << 20, bits=256)
"""A processor that is the same on every machine: its model ranks candidates alike."""
TILED = partial(THE_CPU.tiled, device=CPU)
SMALL, LARGE = gemm(1, 128, 64, 32, 32), gemm(1, 256, 128, 32, 64)


def every(chain: Chain) -> Candidates:
    space, _ = pruned(chain, CPU, TuneOptions(), THE_CPU)
    with HashBench() as bench:
        backend = bench.backend
        return candidates(space, KnobTable(backend.knobs, CPU), backend.feasible)


def test_chains_that_differ_in_numbers_have_one_structure() -> None:
    assert structure(SMALL) == structure(LARGE) == structure(gemm(8, 7, 9, 5, 3))
    assert structure(attention(2, 64, 64, 16, 16)) == structure(attention(8, 128, 64, 64, 32))
    others = gemm(1, 128, 64, 32, 32, "float16"), attention(1, 128, 64, 32, 32)
    assert not {structure(o) for o in others} & {structure(SMALL)}
    tensors = tuple(replace(t, constant=t.name == "B") for t in SMALL.tensors)
    assert structure(replace(SMALL, tensors=tensors)) != structure(SMALL)


def linear(epilogue: str, n: int = 64, read: str = "A[m, k]") -> Chain:
    """Rows times a constant matrix, and what is made of the result."""
    shapes = {"A": ["m", "k"], "B": ["k", "n"], "F": ["n"], "R": ["m", "n"], "S": ["k"]}
    lines = [f"C[m, n] = sum[k] {read} * B[k, n]", f"D[m, n] = {epilogue}"][: 1 + bool(epilogue)]
    tensors = {
        name: {"shape": shape, "constant": name == "B"}
        for name, shape in shapes.items()
        if any(f"{name}[" in line for line in lines)
    }
    axes = {"m": 128, "n": n, "k": 32}
    return from_json({"axes": axes, "tensors": tensors, "operators": lines})


BIAS, RESIDUAL, CLIPPED = "C[m, n] + F[n]", "C[m, n] + F[n] + R[m, n]", "max(C[m, n], 0.0)"


def test_maps_around_reductions_are_no_part_of_the_structure() -> None:
    assert structure(linear(BIAS)) == structure(linear(RESIDUAL)) == structure(linear(CLIPPED, 32))
    assert structure(linear(BIAS)) != structure(linear(BIAS, read="(A[m, k] * S[k])"))
    scaled = {"axes": {"m": 8}, "tensors": {"A": {"shape": ["m"]}}, "operators": ["B[m] = -A[m]"]}
    negated = from_json(scaled)
    assert structure(negated) == structure(from_json(scaled | {"axes": {"m": 9}}))
    assert structure(negated) != structure(from_json(scaled | {"operators": ["B[m] = exp(A[m])"]}))


def test_of_chains_as_near_the_one_with_as_many_operators_comes_first() -> None:
    others = [linear(""), linear(RESIDUAL), linear(RESIDUAL, 32)]
    assert nearest(linear(BIAS), others) == [others[1], others[0], others[2]]


def test_the_nearest_in_extents_come_first() -> None:
    assert distance(SMALL, LARGE) == distance(LARGE, SMALL) == 3.0
    far = [gemm(1, 128 * n, 64, 32, 32) for n in (64, 2, 32, 4, 8, 16, 2)]
    found = nearest(SMALL, [*far, SMALL, attention(1, 128, 64, 32, 32)])
    assert [distance(SMALL, c) for c in found] == [1.0, 2.0, 3.0, 4.0] and len(found) == NEAREST


def timed(chain: Chain, rows: Sequence[int], seconds: Sequence[float | None]) -> list[Tried]:
    whole = every(chain)
    results = {
        whole.candidate(row): Measured(s, 1e-7, None if s is not None else "wrong")
        for row, s in zip(rows, seconds, strict=True)
    }
    return tried(chain, whole, True, results, THE_CPU.estimate)


def test_the_fastest_are_those_that_ran() -> None:
    found = fastest(timed(SMALL, range(5), [None, 3.0, 1.0, None, 2.0]))
    assert [t.seconds for t in found] == [1.0, 2.0][:BEST]
    assert fastest([]) == ()


def test_a_candidate_is_carried_over_to_other_extents() -> None:
    small, large = every(SMALL), every(LARGE)
    for row in range(0, len(small), 7):
        (one,) = timed(SMALL, [row], [1.0])
        (found,) = carried(LARGE, large, True, [Relative(SMALL, (one,))], 4, TILED)
        plan, tiles = large.plan(found)
        before, sizes = small.plan(small.candidate(row))
        assert str(plan.expression) == str(before.expression) and plan.split == before.split
        assert large.settings(found) == small.settings(small.candidate(row))
        wanted = {
            mine.name: min(sizes[mine.name], mine.extent)
            if sizes[mine.name] < theirs.extent else mine.extent
            for mine, theirs in zip(LARGE.axes, SMALL.axes, strict=True) if mine.name in sizes
        }  # fmt: skip
        exact = [c for c in large.rows.tolist() if large.plan(c)[1] == wanted and c[0] == found[0]]
        assert tiles == wanted or not exact


def test_what_does_not_fit_is_left_out() -> None:
    (one,) = timed(SMALL, [0], [1.0])
    large = every(LARGE)
    strange = replace(one, expression="a0a1a2a3a9"), replace(one, split="a1", parts=977)
    for odd in (*strange, replace(one, shifts=False), replace(one, tiles={})):
        assert carried(LARGE, large, True, [Relative(SMALL, (odd,))], 4, TILED) == []
    other = replace(one, knobs={"x": 1})
    assert len(carried(LARGE, large, True, [Relative(SMALL, (other,))], 4, TILED)) == 1
    two = timed(SMALL, [0, 50], [1.0, 2.0])
    assert len(carried(LARGE, large, True, [Relative(SMALL, tuple(two))], 1, TILED)) == 1


@dataclass(frozen=True)
class Noting(SourceBuilder):
    """Remembers which tiles a source has."""

    tiles: dict[str, dict[str, int]] = field(default_factory=dict)

    def begin(self, chain, schedule, name, settings):
        building = super().begin(chain, schedule, name, settings)
        self.tiles[building.kernel().source] = dict(schedule.tiles)
        return building


class Pretended(HashBench):
    """A landscape that no model knows: a kernel is the faster, the nearer each of its tiles is to a
    thirty-second of its axis."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = Noting()

    def measure(self, chain, programs, seed, together=False, **more) -> list[Measured]:
        extents = {a.name: a.extent for a in chain.axes}
        every = [self.builder.tiles[p[0].source] for p in programs]
        times = [
            1 + sum(abs(math.log2(32 * n / extents[a])) for a, n in tiles.items())
            for tiles in every
        ]
        self.alone += times if not together else []
        return [Measured(1e-6 * t, 1e-7) for t in times]


def measured_until(good: float, cache: Cache) -> int:
    """How many candidates a search measures until one takes no more microseconds than `good`."""
    with Pretended() as bench:
        tune(LARGE, FIXED, cache, TuneOptions(), worker=bench)
        return next((i for i, t in enumerate(bench.alone) if t <= good), len(bench.alone))


def test_a_landscape_like_a_related_chain_s_is_solved_in_fewer_measurements() -> None:
    cache = MemoryCache()
    with Pretended() as bench:
        tune(SMALL, FIXED, cache, TuneOptions(), worker=bench)
    good = 0.5 + min(bench.alone)
    assert measured_until(good, cache) < 2 < 4 < measured_until(good, MemoryCache())


@pytest.fixture(params=["memory", "database"])
def cache(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        yield MemoryCache()
        return
    with closing(Storage(f"sqlite:///{tmp_path / 'x.db'}")) as store:
        yield store


def searched(chain: Chain, cache: Cache, **options: int) -> tuple[Tuned, HashBench]:
    with HashBench() as bench:
        return tune(chain, CPU, cache, TuneOptions(**options), worker=bench), bench


def test_a_search_begins_with_what_was_best_for_a_related_chain(cache: Cache) -> None:
    small, _ = searched(SMALL, cache, trials=24)
    (relative,) = cache.related(LARGE, "cpu")
    assert relative.chain.key == SMALL.key and len(relative.best) == BEST
    assert relative.best[0].seconds == min(
        t.seconds for t in cache.tried(small.key) if t.seconds is not None
    )
    assert cache.related(LARGE, "nvidia/h200") == [] and not cache.related(SMALL, "cpu")
    assert not cache.related(gemm(1, 256, 128, 32, 64, "float16"), "cpu")
    led, _ = searched(LARGE, cache, trials=8)
    first = cache.tried(led.key)[: len(relative.best)]
    wanted = carried(LARGE, every(LARGE), True, [relative], 4, TILED)
    assert [t.candidate for t in first] == [
        t.candidate
        for t in tried(LARGE, every(LARGE), True, dict.fromkeys(wanted, FINE), THE_CPU.estimate)
    ]
    assert LayeredCache(cache, lambda key: None).related(LARGE, "cpu")
    assert RetuneCache(cache).related(LARGE, "cpu") == ()


def test_another_epilogue_begins_with_what_was_best(cache: Cache) -> None:
    searched(linear(RESIDUAL), cache, trials=8)
    (relative,) = cache.related(linear(BIAS), "cpu")
    assert relative.chain.key == linear(RESIDUAL).key
    assert carried(linear(BIAS), every(linear(BIAS)), True, [relative], 4, TILED)
    assert not cache.related(linear(BIAS, read="(A[m, k] * S[k])"), "cpu")


FINE = Measured(1.0, 0.0)
