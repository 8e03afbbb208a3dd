"""Values of a chain that are broadcast within it: along a dimension, or a part of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcfuser.graph.partition import Partition
from tests.support.computed_naively import agreed
from tests.support.nets import Net

GROUPS, EACH, ROWS, PLACES = 4, 6, 2, 40
CHANNELS = GROUPS * EACH


@pytest.fixture(autouse=True)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is too small for a chain."""
    for name in ("_SMALLEST", "_SMALLEST_MAP", "_SMALLEST_HERE"):
        monkeypatch.setattr(f"mcfuser.graph.partition.{name}", 1)


def reshaped(net: Net, x: str, *extents: int) -> str:
    return net.op("Reshape", x, net.ints(*extents))


def of_groups(net: Net, x: str, kind: str = "ReduceMax") -> str:
    """A number of each group of channels of x, [rows, groups]."""
    return net.op(kind, reshaped(net, x, ROWS, GROUPS, -1), axes=[2], keepdims=0)


def repeated(net: Net, x: str) -> str:
    """Numbers of groups [rows, groups], for each channel [rows, channels, 1]."""
    x = net.op("Expand", reshaped(net, x, ROWS, GROUPS, 1), net.ints(ROWS, GROUPS, EACH))
    return reshaped(net, x, ROWS, CHANNELS, 1)


def picture(net: Net) -> str:
    return net.input("x", ROWS, CHANNELS, PLACES)


def kernels(parted: Partition) -> int:
    return len(parted.matches)


def test_numbers_of_groups_are_read_by_their_channels_in_one_chain(tmp_path: Path) -> None:
    net = Net()
    x = picture(net)
    y = net.op("Exp", net.op("Sub", x, repeated(net, of_groups(net, x))))
    parted = agreed(net.model(y), tmp_path, copies=False)
    assert kernels(parted) == 1 and not parted.left
    (match,) = parted.matches
    assert [o.reduce for o in match.chain.operators] == ["max", "none"]


def test_what_varies_along_groups_alone_stays_so_until_something_else_does(tmp_path: Path) -> None:
    net = Net()
    x = picture(net)
    most = repeated(net, of_groups(net, x))
    mean = repeated(net, of_groups(net, net.op("Abs", x), "ReduceMean"))
    y = net.op("Mul", x, net.op("Tanh", net.op("Div", most, mean)))
    assert kernels(agreed(net.model(y), tmp_path, copies=False)) == 1


def test_two_parts_of_a_dimension_and_all_of_it(tmp_path: Path) -> None:
    """One operand varies along groups, one along the channels of each, the third along both."""
    net = Net()
    x = picture(net)
    one = repeated(net, of_groups(net, x))
    each = net.op("ReduceMax", reshaped(net, x, ROWS, GROUPS, EACH, PLACES), axes=[1, 3])
    two = net.op("Expand", reshaped(net, each, ROWS, 1, EACH), net.ints(ROWS, GROUPS, EACH))
    two = reshaped(net, two, ROWS, CHANNELS, 1)
    y = net.op("Relu", net.op("Add", net.op("Add", one, two), x))
    agreed(net.model(y), tmp_path, copies=False)
    net.nodes[-2].input[1] = net.input("z", CHANNELS, 1)
    agreed(net.model(y), tmp_path, copies=False)


def test_on_a_cpu_what_is_broadcast_is_copied(tmp_path: Path) -> None:
    net = Net()
    x = picture(net)
    y = net.op("Exp", net.op("Sub", x, repeated(net, of_groups(net, x))))
    assert kernels(agreed(net.model(y), tmp_path)) == 2


def added_up(net: Net, x: str) -> str:
    return net.op("ReduceSum", repeated(net, of_groups(net, x)), net.ints(1), keepdims=0)


def multiplied(net: Net, x: str) -> str:
    return net.op("MatMul", net.weight(5, CHANNELS), repeated(net, of_groups(net, x)))


def as_shares(net: Net, x: str) -> str:
    return net.op("Softmax", repeated(net, of_groups(net, x)), axis=1)


def as_results(net: Net, x: str) -> str:
    return repeated(net, net.op("Tanh", of_groups(net, x)))


def beside_others(net: Net, x: str) -> str:
    every = net.op("ReduceMin", x, axes=[2])
    return net.op("Concat", net.op("Abs", repeated(net, of_groups(net, x))), every, axis=1)


def twice_at_other_places(net: Net, x: str) -> str:
    """An outer sum of a row with itself: one is repeated where the other one is tiled."""
    row = net.op("ReduceMax", net.input("y", GROUPS, 64), axes=[1], keepdims=0)
    square = (GROUPS, GROUPS)
    one = net.op("Expand", reshaped(net, row, GROUPS, 1), net.ints(*square))
    two = net.op("Expand", reshaped(net, row, 1, GROUPS), net.ints(*square))
    both = [reshaped(net, e, GROUPS * GROUPS, 1) for e in (one, two)]
    return net.op("Mul", net.op("Add", *both), net.input("z", GROUPS * GROUPS, 300))


def normalized(net: Net, x: str) -> str:
    rows = reshaped(net, repeated(net, of_groups(net, x)), ROWS, CHANNELS)
    return net.op("LayerNormalization", rows, net.weight(CHANNELS))


@pytest.mark.parametrize(
    "made",
    [
        added_up,
        multiplied,
        as_shares,
        as_results,
        beside_others,
        twice_at_other_places,
        normalized,
    ],
)
def test_what_is_repeated_counts_as_often_as_it_is(
    made: Callable[[Net, str], str], tmp_path: Path
) -> None:
    net = Net()
    agreed(net.model(made(net, picture(net))), tmp_path, copies=False)


@st.composite
def operands(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], bool]]]:
    """The parts of a dimension, and which of them each of some operands varies along; and whether
    it is computed by a reduction."""
    parts = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3))
    one = st.lists(st.booleans(), min_size=len(parts), max_size=len(parts))
    found = draw(st.lists(st.tuples(one, st.booleans()), min_size=2, max_size=4))
    kept = [([n if v else 1 for n, v in zip(parts, varies, strict=True)], r) for varies, r in found]
    return parts, kept


@given(operands(), st.booleans())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_parts_of_a_dimension(
    tmp_path: Path, drawn: tuple[Sequence[int], list[tuple[Sequence[int], bool]]], shared: bool
) -> None:
    """Each operand is a row of numbers along some parts, repeated along the others."""
    parts, found = drawn
    net, total, known = Net(), "", dict[tuple[int, ...], str]()
    whole = int(np.prod(parts))
    for i, (extents, reduced) in enumerate(found):
        size = int(np.prod(extents))
        key = (size, reduced)
        x = known.get(key, "") if shared else ""
        if not x:
            x = net.input(f"x{i}", size, 70) if reduced else net.input(f"x{i}", size)
            x = net.op("ReduceMax", x, axes=[1], keepdims=0) if reduced else net.op("Abs", x)
            known[key] = x
        x = net.op("Expand", reshaped(net, x, *extents), net.ints(*parts))
        x = reshaped(net, x, whole, 1)
        total = net.op("Mul", total, x) if total else x
    y = net.op("Add", total, net.input("y", whole, 50))
    agreed(net.model(y), tmp_path, copies=False)
