"""A cluster keeps each number of its matrices once, and has the size that was measured best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.codegen.cuda import cluster
from mcfuser.codegen.cuda.cluster import (
    PIECE,
    THREADS,
    ClusterWalk,
    clustered,
    packed,
    recurrence_limits,
)
from mcfuser.devices.catalogue import device_named
from tests.support.recurrences import cell

H200, A100 = device_named("nvidia/h200"), device_named("nvidia/a100")
OLD = replace(A100, arch="sm_75")


walks = st.builds(
    ClusterWalk,
    st.sampled_from([cell(s, d) for s in ((1,), (3,), (4,), (2, 1)) for d in (1, 2)]),
    steps=st.just(1),
    batch=st.just(1),
    hidden=st.integers(1, 150),
    dtype=st.just("float32"),
    multiplied=st.sampled_from(["float16", "float32"]),
    blocks=st.sampled_from([1, 2, 4, 8]),
    rows=st.just(1),
)


@given(walks)
def test_every_number_is_in_one_piece_and_everything_else_is_zero(walk: ClusterWalk) -> None:
    cell, hidden = walk.recurrence, walk.hidden
    count = cell.directions * cell.sums * hidden**2
    square = np.arange(1, count + 1, dtype=np.int32 if walk.size == 4 else np.float64)
    pieces = packed(square.reshape(cell.directions, hidden, -1), walk)
    numbers = PIECE // walk.size
    assert pieces.shape == (cell.directions, walk.blocks, walk.pieces, THREADS, numbers)
    assert np.array_equal(np.sort(pieces[pieces != 0]), square)
    for d in range(cell.directions):
        held = set(pieces[d][pieces[d] != 0].tolist())
        assert held == set(square.reshape(cell.directions, -1)[d].tolist())


@given(walks)
def test_vectors_have_room_for_what_is_read_and_what_is_sent(walk: ClusterWalk) -> None:
    for d in walk.divisions:
        assert walk.hidden <= d.parts * d.deep * walk.depth <= walk.width
        assert d.groups * d.parts <= cluster.WARPS
    assert walk.hidden <= walk.blocks * walk.units <= walk.width
    assert walk.width * walk.size % 128 == 64 and walk.units % 2 == 0
    assert all(size % 16 == 0 for _, size in walk.places)


@pytest.mark.parametrize(
    ("stages", "dtype", "hidden", "batch", "blocks", "rows"),
    [
        ((4,), "float16", 64, 1, 1, 1),
        ((4,), "float16", 128, 1, 8, 1),
        ((3,), "float16", 128, 1, 1, 1),
        ((2, 1), "float16", 256, 1, 8, 1),
        ((4,), "float16", 256, 8, 8, 1),
        ((4,), "float16", 256, 64, 8, 5),
        ((4,), "float32", 128, 1, 8, 1),
        ((4,), "float16", 256, 512, 2, 8),
    ],
)
def test_what_was_measured_to_be_fastest_is_chosen(
    stages: tuple[int, ...], dtype: str, hidden: int, batch: int, blocks: int, rows: int
) -> None:
    """Or what is next to it, of 1, 2, 4 and 8 blocks (H200, 2026-11-28)."""
    found = clustered(cell(stages), 100, batch, hidden, dtype, dtype, H200)
    assert (found.blocks, found.rows) == (blocks, rows)


@pytest.mark.parametrize("device", [H200, A100, OLD], ids=["H200", "A100", "sm_75"])
def test_what_is_within_the_limits_fits(device) -> None:
    limits = recurrence_limits(device)
    assert limits.sizes
    for dtype, stages, rows, most in limits.sizes:
        for hidden in (1, most // 2, most):
            for batch in (1, rows):
                found = clustered(cell(stages, 2), 3, batch, hidden, dtype, dtype, device)
                assert found.shared <= device.fast
                assert found.rows * found.clusters >= batch
                assert found.blocks == 1 or device is H200


def test_types_and_sizes_are_those_of_the_architecture() -> None:
    def most(device, dtype: str) -> int:
        sizes = recurrence_limits(device).sizes or ()
        return max(n for t, s, _, n in sizes if (t, s) == (dtype, (4,)))

    assert recurrence_limits(OLD).dtypes == ("float32",)
    assert recurrence_limits(A100).dtypes == ("float32", "float16", "bfloat16")
    assert most(H200, "float16") == most(H200, "bfloat16") == 512 > most(H200, "float32")
    assert most(A100, "float16") < 256


def test_the_last_cluster_begins_earlier() -> None:
    walk = ClusterWalk(cell((4,)), 1, 5, 8, "float16", "float16", 1, 2)
    assert (walk.clusters, walk.units) == (3, 8)


def test_large_batches_have_fewer_units() -> None:
    """Clusters of a batch that is large run one after another."""
    limits = recurrence_limits(H200)
    for dtype, many in (("float16", 128), ("float32", 64)):
        assert limits.hold(dtype, (4,), many, 368)
        assert not limits.hold(dtype, (4,), 512, 368) and limits.hold(dtype, (4,), 512, 128)
        assert not limits.hold(dtype, (4,), 513, 1)


def test_no_more_clusters_are_counted_on_than_run_at_once() -> None:
    found = clustered(cell((4,)), 100, 16, 512, "float16", "float16", H200)
    assert (found.blocks, found.rows) == (8, 2)  # 16 clusters took twice as long
