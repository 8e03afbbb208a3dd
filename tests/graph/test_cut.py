"""Slices of what a chain computes: what is behind them is computed in the same kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcfuser.chain import Chain
from mcfuser.expr import text
from tests.support.computed_naively import agreed
from tests.support.nets import Net

ROWS, HEADS, DEPTH = 192, 6, 32
Cut = Callable[[Net, str], str]


def of(n: Net, value: str, begin: int, end: int, step: int = 1, axis: int = -1) -> str:
    return n.op("Slice", value, n.ints(begin), n.ints(end), n.ints(axis), n.ints(step))


def normed(n: Net, value: str) -> str:
    mean = n.op("ReduceMean", n.op("Mul", value, value), axes=[-1])
    return n.op("Div", value, n.op("Sqrt", n.op("Add", mean, n.const(1e-5))))


def halves(n: Net, value: str) -> str:
    """One half of a head, and the other one with its sign turned, as a rotary embedding has it."""
    low, high = of(n, value, 0, DEPTH // 2), of(n, value, DEPTH // 2, DEPTH)
    return n.op("Concat", n.op("Neg", high), low, axis=-1)


def pairs(n: Net, value: str) -> str:
    """The two of each pair, which lie side by side."""
    both = n.op("Reshape", value, n.ints(ROWS, HEADS, DEPTH // 2, 2))
    first, second = (of(n, both, i, i + 1) for i in range(2))
    turned = n.op("Concat", n.op("Neg", second), first, axis=-1)
    return n.op("Reshape", turned, n.ints(ROWS, HEADS, DEPTH))


def from_behind(n: Net, value: str) -> str:
    low, high = of(n, value, -DEPTH, -DEPTH // 2), of(n, value, -DEPTH // 2, 2**31)
    return n.op("Concat", n.op("Neg", high), low, axis=-1)


def chains(cut: Cut, folder: Path, norm: bool = True, whole: bool = True) -> list[Chain]:
    """The chains of a model that turns its rows by angles, checked against onnxruntime."""
    n = Net()
    value = n.input("x", ROWS, HEADS, DEPTH)
    value = normed(n, value) if norm else n.op("Mul", value, n.weight(DEPTH))
    found = n.op("Mul", cut(n, value), n.weight(ROWS, 1, DEPTH))
    if whole:
        found = n.op("Add", n.op("Mul", value, n.weight(ROWS, 1, DEPTH)), found)
    parted = agreed(n.model(found), folder, copies=False)
    return [m.chain for m in parted.matches]


@pytest.mark.parametrize("cut", [halves, pairs, from_behind])
@pytest.mark.parametrize("norm", [False, True])
def test_a_norm_and_what_turns_its_rows_are_one_chain(cut: Cut, norm: bool, tmp_path: Path) -> None:
    (chain,) = chains(cut, tmp_path, norm)
    assert [o.reduce for o in chain.operators] == (["sum", "none"] if norm else ["none"])
    turned = text(chain.operators[-1].body)
    assert "select(" in turned and turned.count("sqrt(") == (3 if norm else 0)


def test_every_other_element(tmp_path: Path) -> None:
    """Axes inside of a step stand still, too."""

    def cut(n: Net, value: str) -> str:
        even, odd = (of(n, value, i, DEPTH, 2) for i in range(2))
        return n.op("Concat", even, odd, axis=-1)

    assert len(chains(cut, tmp_path, whole=False)) == 1


def within_a_part(n: Net, value: str) -> str:
    some = of(n, value, 8, 8 + DEPTH // 2)
    return n.op("Concat", some, some, axis=-1)


def of_no_equal_parts(n: Net, value: str) -> str:
    low, high = of(n, value, 0, 12), of(n, value, 12, 24)
    return n.op("Concat", low, high, of(n, value, 20, 28), axis=-1)


def backwards(n: Net, value: str) -> str:
    return of(n, value, DEPTH - 1, -(2**31), -1)


@pytest.mark.parametrize("cut", [within_a_part, of_no_equal_parts, backwards])
def test_other_slices_are_read_of_what_another_kernel_wrote(cut: Cut, tmp_path: Path) -> None:
    assert len(chains(cut, tmp_path)) > 1


def test_what_a_chain_sums_is_not_cut(tmp_path: Path) -> None:
    """A half of the heads' sums: the sum would be computed for all of them."""
    n = Net()
    value = n.input("x", ROWS, HEADS, 256)
    sums = n.op("ReduceSum", n.op("Exp", value), n.ints(2), keepdims=1)
    half = of(n, sums, 0, HEADS // 2, axis=1)
    model = n.model(n.op("Mul", half, n.input("y", ROWS, HEADS // 2, 256)))
    assert [len(m.chain.operators) for m in agreed(model, tmp_path, copies=False).matches] == [1, 1]
