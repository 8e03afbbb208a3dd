"""Attention reads the parts of what would be concatenated for it, and means the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.graph.dataflow import shape
from mcfuser.graph.leftover import NOT_COMPUTED
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition, partition
from tests.support.computed_naively import agreed
from tests.support.decoders import decoder
from tests.support.nets import Net

LENGTH, DEPTH = 40, 8


def copies(parted: Partition, positions: int) -> list[str]:
    """The concatenations with so many positions that are made still."""
    return [
        str(v.name)
        for v, why in parted.left.items()
        if v.name.startswith("Concat") and positions in shape(v) and why != NOT_COMPUTED
    ]


def extents(parted: Partition) -> dict[str, Any]:
    """The axes of the chain that has a maximum."""
    (match,) = (m for m in parted.matches if any(o.reduce == "max" for o in m.chain.operators))
    return {a.name: a.extent for a in match.chain.axes}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "axes"),
    [
        ({}, {"b": 2, "m": 2, "n": 33, "k": 16, "h": 16}),
        ({"groups": 4}, {"b": 4, "m": 1, "n": 33, "k": 16, "h": 16}),
        ({"groups": 1}, {"m": 4, "n": 33, "k": 16, "h": 16}),
        ({"masked": True}, {"b": 2, "m": 2, "n": 33, "k": 16, "h": 16}),
        ({"first": True}, {"b": 2, "m": 2, "n": 33, "k": 16, "h": 16}),
        ({"rows": 3}, {"b": 2, "m": 2, "i": 3, "n": 33, "p": 3, "k": 16, "h": 16}),
        (
            {"rows": 4, "masked": True, "groups": 4, "first": True},
            {"b": 4, "m": 4, "n": 33, "p": 4, "k": 16, "h": 16},
        ),
    ],
)
def test_a_step_reads_its_cache_where_it_is(
    options: dict[str, Any], axes: dict[str, int], tmp_path: Path
) -> None:
    parted = agreed(decoder(**options), tmp_path)
    assert extents(parted) == axes
    assert copies(parted, 33 + options.get("rows", 1)) == []


def test_half_precision_is_rounded_where_it_was(tmp_path: Path) -> None:
    parted = agreed(decoder(dtype=np.float16), tmp_path, 5e-3)
    assert extents(parted)["n"] == 33


@pytest.mark.parametrize(
    "options",
    [
        {"cached": 6, "rows": 4},  # no part is much longer than the others
        {"cached": 200, "rows": 20},  # the others are no single tile
    ],
)
def test_what_does_not_pay_is_read_whole(options: dict[str, Any], tmp_path: Path) -> None:
    parted = agreed(decoder(**options), tmp_path)
    total = options.get("cached", 33) + options.get("rows", 1)
    assert extents(parted)["n"] == total
    assert len(copies(parted, total)) == 2


Values = Callable[[Net], tuple[str, str]]
"""Keys [2, depth, positions] and values [2, positions, depth]."""


def attention(n: Net, keys: str, values: str, rows: int = 2) -> str:
    scores = n.op("MatMul", n.input("q", 2, rows, DEPTH), keys)
    return n.op("MatMul", n.op("Softmax", n.op("Tanh", scores), axis=-1), values)


def parts(n: Net, name: str, lengths: list[int], axis: int) -> str:
    shapes = [(2, length, DEPTH) if axis == 1 else (2, DEPTH, length) for length in lengths]
    read = [n.input(f"{name}{i}", *s) for i, s in enumerate(shapes)]
    return n.op("Concat", *read, axis=axis)


def three(n: Net) -> tuple[str, str]:
    return parts(n, "k", [1, LENGTH - 3, 2], 2), parts(n, "v", [1, LENGTH - 3, 2], 1)


def values_alone(n: Net) -> tuple[str, str]:
    return n.input("k", 2, DEPTH, LENGTH), parts(n, "v", [LENGTH - 1, 1], 1)


def constant_keys(n: Net) -> tuple[str, str]:
    return n.weight(2, DEPTH, LENGTH), parts(n, "v", [LENGTH - 2, 2], 1)


def keys_alone(n: Net) -> tuple[str, str]:
    return parts(n, "k", [1, LENGTH - 1], 2), n.input("v", 2, LENGTH, DEPTH)


def different(n: Net) -> tuple[str, str]:
    return parts(n, "k", [1, LENGTH - 1], 2), parts(n, "v", [LENGTH - 1, 1], 1)


def along_the_depth(n: Net) -> tuple[str, str]:
    keys = [n.input(f"k{i}", 2, length, LENGTH) for i, length in enumerate((DEPTH - 1, 1))]
    return n.op("Concat", *keys, axis=1), n.input("v", 2, LENGTH, DEPTH)


def of_heads(n: Net) -> tuple[str, str]:
    keys = [n.input(f"k{i}", 1, DEPTH, LENGTH) for i in range(2)]
    return n.op("Concat", *keys, axis=0), n.input("v", 2, LENGTH, DEPTH)


@pytest.mark.parametrize(
    ("build", "longest"),
    [
        (three, LENGTH - 3),
        (values_alone, LENGTH - 1),
        (constant_keys, LENGTH - 2),
        (keys_alone, LENGTH - 1),
        (different, LENGTH),  # positions of one are not those of the other
        (along_the_depth, LENGTH),
        (of_heads, LENGTH),
    ],
)
def test_parts_of_any_number_and_order(build: Values, longest: int, tmp_path: Path) -> None:
    n = Net()
    parted = agreed(n.model(attention(n, *build(n))), tmp_path)
    assert extents(parted)["n"] == longest


def test_a_product_of_many_rows_takes_a_copy(tmp_path: Path) -> None:
    n = Net()
    parted = agreed(n.model(attention(n, *three(n), rows=65)), tmp_path)
    assert extents(parted)["n"] == LENGTH


def test_what_is_made_for_others_is_read_in_parts_by_attention(tmp_path: Path) -> None:
    parted = agreed(decoder(whole=True), tmp_path)
    assert extents(parted)["n"] == 33
    assert len(copies(parted, 34)) == 2


def test_what_another_value_reads_is_made_for_it(tmp_path: Path) -> None:
    n = Net()
    keys, values = three(n)
    other = n.op("Exp", values)
    parted = agreed(n.model(attention(n, keys, values), other), tmp_path)
    assert extents(parted)["n"] == LENGTH - 3
    assert len(copies(parted, LENGTH)) == 1  # of the values


@pytest.mark.parametrize("name", ["Attention", "MultiHeadAttention"])
def test_operators_that_append_to_a_cache(name: str, tmp_path: Path) -> None:
    n = Net(opset=23 if name == "Attention" else 17)
    past = [n.input(f"past_{i}", 1, 4, LENGTH, DEPTH) for i in range(2)]
    shape = (1, 4, 1, DEPTH) if name == "Attention" else (1, 1, 4 * DEPTH)
    new = [n.input(letter, *shape) for letter in "qkv"]
    if name == "Attention":
        out = n.op(name, *new, "", *past, outputs=3)
    else:
        out = n.op(name, *new, "", "", "", *past, outputs=3, domain="com.microsoft", num_heads=4)
    model = n.model(out, *list(n.nodes[-1].output)[1:])
    model.ir_version = 11 if name == "Attention" else 8
    assert extents(agreed(model, tmp_path))["n"] == LENGTH


def test_a_softmax_in_another_precision(tmp_path: Path) -> None:
    """The scores are widened, and the weights narrowed again."""
    n = Net(np.float16)
    keys, values = three(n)
    scores = n.op("MatMul", n.input("q", 2, 2, DEPTH), keys)
    capped = n.op("Mul", n.op("Tanh", n.op("Div", scores, n.const(5))), n.const(5))
    wide = n.op("Add", n.op("Cast", capped, to=1), n.input("bias", LENGTH, dtype=np.float32))
    weights = n.op("Cast", n.op("Softmax", wide, axis=-1), to=10)
    parted = agreed(n.model(n.op("MatMul", weights, values)), tmp_path, 5e-3)
    assert extents(parted)["n"] == LENGTH - 3


def test_a_row_that_sees_one_part_alone(tmp_path: Path) -> None:
    """All of the other part is hidden from it, by a constant mask."""
    n = Net()
    keys, values = three(n)
    hidden = np.zeros((2, LENGTH))
    hidden[0, :-2], hidden[1, -2:] = -np.inf, -np.inf
    scores = n.op("Add", n.op("MatMul", n.input("q", 2, 2, DEPTH), keys), n.const(hidden))
    parted = agreed(n.model(n.op("MatMul", n.op("Softmax", scores, axis=-1), values)), tmp_path)
    assert extents(parted)["n"] == LENGTH - 3


def test_rows_that_see_nothing_are_zeros_where_the_model_says_so(tmp_path: Path) -> None:
    """Exporters write zeros in the place of what is no number after a softmax."""
    n = Net()
    keys, values = three(n)
    hidden = np.zeros((3, LENGTH))
    hidden[0], hidden[1, 1:-2] = -np.inf, -np.inf
    scores = n.op("Add", n.op("MatMul", n.input("q", 2, 3, DEPTH), keys), n.const(hidden))
    weights = n.op("Softmax", scores, axis=-1)
    shown = n.op("Where", n.op("IsNaN", weights), n.const(0), weights)
    parted = agreed(n.model(n.op("MatMul", shown, values)), tmp_path)
    assert extents(parted)["n"] == LENGTH - 3


def test_the_longest_part_comes_first_and_no_operator_is_computed_twice() -> None:
    n = Net()
    module = load(n.model(attention(n, *three(n))).SerializeToString(), {}).module
    (match,) = partition(module, 1e12, 1e11).matches
    operators = match.chain.operators
    assert operators[0].product is not None and operators[0].axes[-1] == "n"
    loop = [o.out for o in operators if "n" in o.related]
    assert [o.out for o in operators[: len(loop)]] == loop
    bodies = [(o.axes, str(o.body), o.reduce, o.over) for o in operators]
    assert len(set(bodies)) == len(bodies)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_parts_mean_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    others: list[int],
    at: int,
    rows: int,
    masked: bool,
) -> None:
    lengths = [*others[:at], 8 * sum(others) + 1, *others[at:]]
    n = Net()
    keys, values = parts(n, "k", lengths, 2), parts(n, "v", lengths, 1)
    scores = n.op("MatMul", n.input("q", 2, rows, DEPTH), keys)
    if masked:
        scores = n.op("Add", scores, n.input("mask", rows, sum(lengths)))
    out = n.op("MatMul", n.op("Softmax", scores, axis=-1), values)
    parted = agreed(n.model(out), tmp_path_factory.mktemp("parts"))
    assert extents(parted)["n"] == max(lengths)
