"""Kernels compute what a recurrence is by definition, however clusters divide it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mcfuser.codegen.cuda import cluster
from mcfuser.codegen.cuda.cluster import ClusterWalk, packed
from mcfuser.codegen.cuda.recurrence_source import parameters, source
from tests.support.cuda_on_host import needs_compiler, on_host, run
from tests.support.paths import GOLDEN
from tests.support.recurrences import Walked, cells, random_walk, walked_over

ONE, TWO = cells((False,), False)
BOTH = cells((False, True), True)[1]
BACK = cells((True,), True)[0]
ERROR = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


GOLDENS = {
    "tensor_core_cluster": ClusterWalk(ONE, 4, 2, 40, "float16", "float16", 2, 2),
    "lane_alone": ClusterWalk(BACK, 4, 3, 33, "float32", "float32", 1, 2),
    "narrow_both_ways": ClusterWalk(BOTH, 4, 5, 40, "float32", "bfloat16", 4, 3),
}
FOLDER = GOLDEN / "cuda"


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, update_golden: bool) -> None:
    """`pytest --update-golden` accepts what changed."""
    path, text = FOLDER / f"{name}.cu", source(GOLDENS[name], name)
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(GOLDENS)


def results(walk: ClusterWalk, walked: Walked, folder: Path) -> list[np.ndarray]:
    """What the kernel writes."""
    cell, kind = walk.recurrence, walked.given.dtype
    form = cell.directions, walk.batch, walk.hidden
    written = [np.full((walk.steps, *form), np.nan, kind)]
    written += [np.full(form, np.nan, kind) for _ in cell.states]
    square = walked.square.astype(np.dtype(getattr(ml_dtypes, walk.multiplied, walk.multiplied)))
    tensors = [walked.given, packed(square, walk), *walked.arguments, *written]
    assert len(tensors) == len(parameters(walk))
    run(on_host(walk, folder), walk, tensors)
    return [a.astype(np.float64) for a in written]


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize(
    ("cell", "dtype", "blocks", "rows", "batch", "hidden"),
    [
        (ONE, "float16", 1, 1, 1, 16),
        (TWO, "float16", 2, 2, 3, 21),
        (BOTH, "float16", 2, 3, 5, 40),
        (BACK, "bfloat16", 4, 2, 2, 35),
        (ONE, "float32", 1, 2, 4, 33),
        (TWO, "float32", 2, 1, 2, 19),
        (BOTH, "float32", 2, 4, 5, 9),
        (BACK, "float16", 1, 8, 9, 70),
    ],
)
def test_every_unit_of_every_row_is_computed(
    cell: object, dtype: str, blocks: int, rows: int, batch: int, hidden: int, tmp_path: Path
) -> None:
    walk = ClusterWalk(cell, 4, batch, hidden, dtype, dtype, blocks, rows)
    agrees(walk, tmp_path)


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_registers_cannot_hold_lies_in_shared_memory(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "HELD", 3)
    walk = ClusterWalk(TWO, 3, 1, 70, dtype, dtype, 2, 1)
    assert dict(walk.places)["further"] == (walk.pieces - 3) * cluster.THREADS * cluster.PIECE > 0
    agrees(walk, tmp_path)


@needs_compiler
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_matrices_may_be_narrower_than_tensors(narrow: str, tmp_path: Path) -> None:
    walk = ClusterWalk(BOTH, 3, 2, 21, "float32", narrow, 2, 2)
    agrees(walk, tmp_path)


def agrees(walk: ClusterWalk, folder: Path) -> None:
    walked = random_walk(walk.recurrence, walk.steps, walk.batch, walk.hidden, walk.dtype)
    out, *last = results(walk, walked, folder)
    wanted = walked_over(walked)
    error = ERROR[walk.multiplied]
    np.testing.assert_allclose(out, wanted[0], rtol=error, atol=error)
    np.testing.assert_allclose(np.stack(last), wanted[1], rtol=error, atol=error)
