"""Under which settings of their knobs candidates are tried, and what the model says of some."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.codegen import tensorir, triton
from mcfuser.codegen.triton import generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.hopper.groups import COUNTS
from mcfuser.lowering.triton.instructions import ROWS
from mcfuser.space.candidates import Candidates
from mcfuser.space.statement import Illegal
from mcfuser.tune.expected import expected, pruned
from mcfuser.tune.tuned import TuneOptions
from tests.support.gpu_candidates import every, settings, times, with_groups

H200, A100 = CATALOGUE["nvidia/h200"], CATALOGUE["nvidia/a100"]
HEADS = attention(16, 2048, 2048, 64, 64, "float16")
PRODUCT = from_json({
    "name": "product",
    "axes": {"m": 2048, "n": 1024, "k": 1024},
    "tensors": {t: {"shape": list(s), "dtype": "float16"} for t, s in
                {"A": "mk", "B": "kn", "C": "mn"}.items()},
    "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
})  # fmt: skip


def candidates(chain: Chain, device=H200, measured: bool = True) -> Candidates:
    return every(pruned(chain, device, TuneOptions(), CUDA)[0], device, measured)


@pytest.fixture(scope="module")
def heads() -> Candidates:
    return candidates(HEADS)


def test_groups_have_their_rows_and_every_depth_of_their_rings(heads) -> None:
    m = 1 + heads.space.axes.index("m")
    some = with_groups(heads)
    assert {4} < {n // ROWS for n in some[:, m]} <= {*COUNTS}
    assert {heads.settings(row).stages for row in some} == {2, 3, 4}
    made = list[bool]()
    for row in some:
        plan, tiles = heads.plan(row)
        with contextlib.suppress(Illegal):  # too few registers
            made.append(generate(plan.schedule(tiles), "kernel", heads.settings(row)).gluon)
    assert all(made) and len(made) > 0.9 * len(some)


def test_groups_want_hopper_and_may_be_left_out() -> None:
    assert not len(with_groups(candidates(HEADS, A100)))
    alone, both = candidates(HEADS, measured=False), candidates(HEADS)
    assert not len(with_groups(alone))
    kept = (settings(both, "combine") == "kernel") & ~settings(both, "groups")
    others = both.rows[kept]
    assert np.array_equal(np.unique(others, axis=0), np.unique(alone.rows, axis=0))


def by_depth(found: Candidates) -> dict[tuple[int, ...], dict[int, float]]:
    """Predicted seconds by candidate and stages."""
    rows = with_groups(found)
    seconds = times(found, rows)
    made: dict[tuple[int, ...], dict[int, float]] = {}
    for row, time in zip(rows.tolist(), seconds, strict=True):
        made.setdefault(tuple(row[:-1]), {})[found.settings(row).stages] = float(time)
    assert any(len(depths) > 1 for depths in made.values())
    return made


def test_where_products_are_late_a_deeper_ring_gains_nothing(heads) -> None:
    """On an H200 three tiles a ring took as long as two, or 2 % longer."""
    assert all(len({*depths.values()}) == 1 for depths in by_depth(heads).values())


def test_elsewhere_it_may() -> None:
    made = by_depth(candidates(PRODUCT))
    assert any(depths.get(3, 1.0) < depths.get(2, 0.0) for depths in made.values())


def test_groups_are_expected_to_gain_where_iterations_are_many(heads) -> None:
    best = heads.rows[int(np.argmin(times(heads)))]
    assert heads.settings(best).groups


@pytest.mark.parametrize("device", [H200, A100], ids=["h200", "a100"])
@pytest.mark.parametrize(
    "chain",
    [attention(12, 197, 197, 64, 64, "float16"), gemm(12, 197, 197, 64, 64, "float16")],
    ids=["attention", "gemm"],
)
def test_prime_extents_have_candidates_with_several_blocks(chain: Chain, device) -> None:
    """As one tile, 197 positions fit in no registers."""
    found = candidates(chain, device)
    at = found.space.axes.index("m") + 1
    assert len(found) > 1000 and {16, 32, 64} <= {*found.rows[:, at].tolist()}


def test_narrow_heads_have_groups() -> None:
    """Of 80, which tensor maps pad to 128."""
    found = candidates(attention(16, 1024, 1024, 80, 80, "float16"))
    some = with_groups(found)
    both = some[:, [found.space.axes.index(a) + 1 for a in "kh"]]
    assert (both == 80).all(axis=1).any()


def test_a_space_is_pruned_and_priced_without_a_line_of_source(monkeypatch) -> None:
    def generated(*_: object, **__: object) -> None:
        raise AssertionError("source was generated")

    for module in (triton, triton.function, tensorir, tensorir.function):
        monkeypatch.setattr(module, "generate", generated)
    chain = attention(16, 512, 512, 64, 64, "float16")
    found = candidates(chain)
    assert len(with_groups(found)) and len(found) > 10_000
    seconds = times(found)
    assert (seconds > 0).all() and expected(chain, H200, TuneOptions(), CUDA) == seconds.min()


def test_every_candidate_with_groups_has_a_kernel() -> None:
    found = candidates(attention(16, 512, 512, 64, 64, "float16"))
    for row in with_groups(found)[::7]:
        plan, tiles = found.plan(row)
        assert generate(plan.schedule(tiles), "kernel", found.settings(row)).gluon


def test_what_threads_hold_grows_with_tiles_and_falls_with_warps() -> None:
    found = candidates(PRODUCT)
    plan, _ = found.plan(found.rows[0])
    axes = [a.name for a in plan.program.chain.axes]
    wanted = [(64, 128, 64), (128, 128, 64), (128, 256, 64)]
    tiles = np.array([[dict(zip("mnk", t, strict=True))[a] for a in axes] for t in wanted])
    rows = found.rows[[0, 0, 0]].copy()
    rows[:, 1:-1] = tiles

    def held(warps: int) -> np.ndarray:
        which = next(i for i, s in enumerate(found.table.settings) if s.warps == warps)
        columns = found.table.columns(np.full(3, which))
        return CUDA.held(plan, tiles, columns, H200)

    assert (np.diff(held(4)) > 0).all() and (held(8) < held(4)).all()
