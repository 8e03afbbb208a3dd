"""Operators that find as many elements as there are, before and after their rewriting."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import Arrays, agree, one_node, run

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("count", [2, 3])
def test_what_is_kept(axis: int | None, count: int) -> None:
    """A condition may be shorter than the dimension."""
    given = {"x": RANDOM.standard_normal((3, 4)), "c": np.array([True, False, True])[:count]}
    more = {} if axis is None else {"axis": axis}
    made = agree(one_node("Compress", ["x", "c"], 1, given, **more), given)
    assert "NonZero" in [n.op_type for n in made.graph.node]


def test_what_a_constant_keeps_is_left_as_it_is() -> None:
    given, constants = {"x": RANDOM.standard_normal((3, 4))}, {"c": np.array([True, False, True])}
    model = one_node("Compress", ["x", "c"], 1, given, constants, axis=0)
    rewrite(model)
    assert [n.op_type for n in model.graph.node] == ["Compress"]


LIMITS: Arrays = {
    "most": np.array([5]), "overlap": np.array([0.5], np.float32),
    "least": np.array([0.1], np.float32),
}  # fmt: skip


def test_boxes_are_left_to_be_chosen() -> None:
    given = {"b": np.zeros((1, 6, 4), np.float32), "s": np.zeros((1, 2, 6), np.float32)}
    model = one_node("NonMaxSuppression", [*given, *LIMITS], 1, given, LIMITS, dtypes=[np.int64])
    rewrite(model)
    assert [n.op_type for n in model.graph.node] == ["NonMaxSuppression"]
    assert run(model, given)[0].shape == (0, 3)


@pytest.mark.parametrize("most", [None, 0])
def test_no_boxes_are_refused(most: int | None) -> None:
    given = {"b": np.zeros((1, 6, 4), np.float32), "s": np.zeros((1, 2, 6), np.float32)}
    constants = {} if most is None else {"most": np.array([most])}
    model = one_node("NonMaxSuppression", [*given, *constants], 1, given, constants)
    with pytest.raises(ModelError, match=r"'NonMaxSuppression'.*it chooses no boxes"):
        rewrite(model)


@pytest.mark.parametrize(
    ("name", "words"), [("most", "number of boxes"), ("overlap", "overlap"), ("least", "score")]
)
def test_a_limit_that_an_input_gives_is_refused(name: str, words: str) -> None:
    given = {"b": np.zeros((1, 6, 4), np.float32), "s": np.zeros((1, 2, 6), np.float32)}
    given[name] = LIMITS[name]
    constants = {n: a for n, a in LIMITS.items() if n != name}
    model = one_node("NonMaxSuppression", ["b", "s", *LIMITS], 1, given, constants)
    with pytest.raises(ModelError, match=f"'NonMaxSuppression'.*its {words} is known only at run"):
        rewrite(model)
