"""The tree of loops that placement builds: what it becomes, and what stands in it."""

from __future__ import annotations

from mcfuser.chain import Operator
from mcfuser.expr import parse
from mcfuser.space.nest import SPLIT, Nest, computed, freeze, items
from mcfuser.space.statement import Compute, Init, Loop


def compute(name: str) -> Compute:
    body = parse("X[m]")
    return Compute(Operator(name, ("m",), body), name, body, None)


def tree() -> Nest:
    """m(I, n(A), B)"""
    inner = Nest("n", [compute("A")])
    return Nest(None, [Nest("m", [Init("A", 0.0), inner, compute("B")])])


def test_loops_over_axes_of_the_grid_are_the_grids() -> None:
    (outer,) = freeze(tree(), {"m"})
    assert isinstance(outer, Loop) and (outer.axis, outer.kind) == ("m", "grid")
    inner = outer.body[1]
    assert isinstance(inner, Loop) and (inner.axis, inner.kind) == ("n", "serial")


def test_a_loop_over_parts_loses_its_mark() -> None:
    (outer,) = freeze(Nest(None, [Nest("n" + SPLIT, [Nest("n", [])])]), set())
    assert isinstance(outer, Loop) and (outer.axis, outer.kind) == ("n", "split")
    (inner,) = outer.body
    assert isinstance(inner, Loop) and (inner.axis, inner.kind) == ("n", "serial")


def test_statements_come_in_order_each_with_the_nest_that_holds_it() -> None:
    root = tree()
    found = [(nest.axis, type(s).__name__) for nest, s in items(root)]
    assert found == [("m", "Init"), ("n", "Compute"), ("m", "Compute")]


def test_what_a_nest_computes_is_what_all_its_nests_do() -> None:
    root = tree()
    assert computed(root) == {"A", "B"}
    assert computed(Init("A", 0.0)) == set()
    assert computed(compute("C")) == {"C"}


def test_nests_are_compared_by_what_they_are_not_by_what_they_hold() -> None:
    assert Nest("m") != Nest("m")
