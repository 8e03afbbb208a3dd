"""Slices that are assigned to are concatenations of what is assigned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.expr import text
from mcfuser.graph.load import load
from mcfuser.graph.matching import called
from tests.support.computed_naively import agreed, both
from tests.support.nets import Net

WIDTH = 8


def assigned(
    rows: int, every: Sequence[Sequence[int]], data: str | None = None, outputs: int = 1
) -> onnx.ModelProto:
    """A model that scatters rows of an input to places, one operator after the other."""
    n = Net(opset=18)
    made = [n.input(data, rows, WIDTH) if data else n.const(np.zeros((rows, WIDTH)))]
    for i, places in enumerate(every):
        updates = n.op("Exp", n.input(f"x{i}", len(places), WIDTH))
        where = n.const(np.asarray(places)[:, None], np.int64)
        made.append(n.op("ScatterND", made[-1], where, updates))
    return n.model(*(n.op("Neg", v) for v in made[-outputs:]))


def scatters(model: onnx.ModelProto, folder: Path) -> int:
    """The operators that scatter in a model's module, which computes what onnxruntime does."""
    loaded = load(model.SerializeToString(), {})
    for ours, theirs in both(model, loaded, [], folder):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return sum(name == "relax.scatter_nd" for name in called(loaded.module["main"].body))


TURNS = [[0, 2, 4, 6], [1, 3, 5, 7]]
"""The places of rows that take turns."""


@pytest.mark.parametrize(
    "every",
    [
        TURNS,
        TURNS[::-1],
        [[0, 3], [1, 4], [2, 5]],
        [[0, 1, 2], [3, 4, 5, 6, 7]],
        [[2, 3], [0, 1]],
        [[-4, -3, -2, -1], [0, 1, 2, 3]],
        [[0, 1, 2]],
    ],
)
def test_what_is_assigned_everywhere_is_concatenated(
    every: list[list[int]], tmp_path: Path
) -> None:
    rows = sum(map(len, every))
    assert scatters(assigned(rows, every), tmp_path) == 0
    assert scatters(assigned(rows, every, data="y"), tmp_path) == 0, "nothing is left of it"


@pytest.mark.parametrize(
    ("every", "left"),
    [
        ([[0, 1], [2, 4]], 2),
        ([[0, 2, 4, 6], [1, 3, 5, 6]], 2),
        ([[0, 1, 2, 3], [3, 2, 1, 0], [4, 5, 6, 7]], 3),
        ([[1, 0], [2, 3]], 2),
        ([[0, 3], [1, 2]], 2),
    ],
)
def test_rows_that_are_left_or_written_twice_or_mixed_are_scattered(
    every: list[list[int]], left: int, tmp_path: Path
) -> None:
    rows = 1 + max(row for rows in every for row in rows)
    assert scatters(assigned(rows, every), tmp_path) == left


def test_what_is_read_between_is_scattered_for_its_reader(tmp_path: Path) -> None:
    assert scatters(assigned(8, TURNS, outputs=2), tmp_path) == 1


def test_updates_may_be_added(tmp_path: Path) -> None:
    n = Net(opset=18)
    where = n.const(np.arange(4)[:, None], np.int64)
    added = n.op(
        "ScatterND", n.input("y", 4, WIDTH), where, n.input("x", 4, WIDTH), reduction="add"
    )
    assert scatters(n.model(added), tmp_path) == 1


def test_a_rotary_embedding_that_assigns_to_slices_is_one_chain(tmp_path: Path) -> None:
    """As torch exports it, with the dimension to which is assigned in front."""
    rows, heads, pairs = 192, 6, 16
    n = Net(opset=18)
    both_of = n.op("Reshape", n.input("x", rows, heads, 2 * pairs), n.ints(rows, heads, pairs, 2))
    first, second = (
        n.op("Gather", both_of, n.const(np.asarray(i), np.int64), axis=3) for i in range(2)
    )
    cosine, sine = n.weight(rows, 1, pairs), n.weight(rows, 1, pairs)
    made = n.const(np.zeros((2 * pairs, heads, rows)))
    for i, (op, one, two) in enumerate((("Sub", cosine, sine), ("Add", sine, cosine))):
        value = n.op(op, n.op("Mul", first, one), n.op("Mul", second, two))
        where = n.const(np.arange(i, 2 * pairs, 2)[:, None], np.int64)
        made = n.op("ScatterND", made, where, n.op("Transpose", value, perm=[2, 1, 0]))
    model = n.model(n.op("Transpose", made, perm=[2, 1, 0]))
    (match,) = agreed(model, tmp_path).matches
    assert "select(" in text(match.chain.operators[-1].body)
