"""Expressions: their text says them, and substitution means what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.errors import ChainError
from mcfuser.expr import (
    ARITY,
    DTYPES,
    Affine,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    at,
    axes,
    axis,
    call,
    index_text,
    parse,
    read,
    reads,
    rename,
    rewrite,
    substitute,
    text,
    walk,
)
from mcfuser.space.reference import value

AXES = ("a", "h", "k", "m", "n2")
TENSORS = ("A", "V_part", "exp", "x1")


def affine(first: int = 1) -> st.SearchStrategy[Affine]:
    """Indices as `parse` gives them: axes in order, no coefficient 0, the first from `first` on."""
    others = st.integers(-3, 3).filter(bool)
    return st.builds(
        lambda names, head, rest, offset: Affine(
            tuple(zip(sorted(names), (head, *rest), strict=False)), offset
        ),
        st.sets(st.sampled_from(AXES), max_size=3),
        st.integers(first, 3).filter(bool),
        st.lists(others, min_size=3, max_size=3),
        st.integers(-5, 5),
    )


constants = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False)).map(
    Const
)
leaves = st.one_of(
    constants,
    st.sampled_from(AXES).map(Index),
    st.builds(
        lambda t, first, rest: Read(t, (first, *rest)),
        st.sampled_from(TENSORS),
        affine(),
        st.lists(affine(), max_size=2),
    ),
)


def _calls(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    applied = st.sampled_from(sorted(ARITY)).flatmap(
        lambda op: st.tuples(*[inner] * ARITY[op]).map(lambda args: Call(op, args))
    )
    return st.one_of(applied, st.builds(Cast, inner, st.sampled_from(DTYPES)))


expressions = st.recursive(leaves, _calls, max_leaves=12)


@settings(max_examples=200, deadline=None)
@given(expressions)
def test_the_text_of_an_expression_says_it(e: Expr) -> None:
    again = parse(text(e))
    assert again == e
    assert repr(again) == repr(e)  # 1, 1.0 and True are equal, but not the same constant


@pytest.mark.parametrize("source", ["A[n - m]", "A[-m]", "A[-2*m + n, k]"])
def test_the_text_of_an_index_that_falls_says_it(source: str) -> None:
    e = parse(source)
    assert parse(text(e)) == e


def test_the_text_of_a_scalar_read_says_it() -> None:
    assert parse(text(Read("Z", ()))) == Read("Z", ())


@pytest.mark.parametrize(
    "source",
    [
        "A[m, k] * B[k, n]",
        "a + (h + k)",
        "a - (h - k) - m",
        "a / (h / k)",
        "(a + h) * k",
        "a * (-1.0)",
        "-(a + h)",
        "-a * h",
        "exp(A[m] - A[k])",
        "float16(A[k + 2*m - 3])",
        "n2 <= m and m < n2 + 5 or not_(a == h)",
        "(a or h) and k",
        "select(a != h, -inf, 0.5)",
        "(a < h) == (h < k)",
    ],
)
def test_text_puts_brackets_only_where_needed(source: str) -> None:
    assert text(parse(source)) == source


@pytest.mark.parametrize(
    ("source", "same"),
    [
        ("a > h", "h < a"),
        ("a >= h", "h <= a"),
        ("a ** h", "pow(a, h)"),
        ("not a", "not_(a)"),
        ("A[3 + m - -k]", "A[k + m + 3]"),
        ("A[m*2 + m]", "A[3*m]"),
        ("A[m - m]", "A[0]"),
    ],
)
def test_other_ways_to_write_it(source: str, same: str) -> None:
    assert text(parse(source)) == same


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("A[m", "'A[m' is not an expression: "),
        ("A[m * k]", "index 'm * k' is not affine in the axes"),
        ("A[m / 2]", "index 'm / 2' is not affine in the axes"),
        ("A[B[m]]", "index 'B[m]' is not affine in the axes"),
        ("sin(m)", "operator 'sin' with 1 arguments is not known; use one of add, sub, "),
        ("exp(m, n)", "operator 'exp' with 2 arguments is not known"),
        ("a < h < k", "'a < h < k' is not part of the expression language"),
        ("a in h", "'a in h' is not a comparison of numbers"),
        ("a % h", "'a % h' is not part of the expression language"),
        ("'a'", "is not part of the expression language"),
        ("lambda: 1", "is not part of the expression language"),
    ],
)
def test_what_cannot_be_read_is_named(source: str, message: str) -> None:
    with pytest.raises(ChainError) as caught:
        parse(source)
    assert message in str(caught.value)


def test_a_call_checks_its_arity() -> None:
    with pytest.raises(ChainError, match="operator 'add' with 1 arguments is not known"):
        call("add", 1.0)


def test_reads_and_axes_come_in_the_order_of_the_text() -> None:
    e = parse("B[n] * A[m + k] + B[n] * h")
    assert reads(e) == (read("B", "n"), Read("A", (Affine((("k", 1), ("m", 1))),)))
    assert axes(e) == ("n", "k", "m", "h")
    assert [type(x).__name__ for x in walk(parse("exp(A[m])"))] == ["Call", "Read"]


def test_an_index_is_plain_only_if_it_is_one_axis() -> None:
    assert axis("m").plain == "m"
    assert [Affine(t, o).plain for t, o in [((("m", 2),), 0), ((("m", 1),), 1), ((), 0)]] == [
        None
    ] * 3
    assert index_text(Affine((("k", 2), ("m", -1)), -4)) == "2*k - 1*m - 4"


# --- what renaming and substitution mean ----------------------------------------------------


def position(index: Affine, where: dict[str, int]) -> int:
    return index.offset + sum(c * where[a] for a, c in index.terms)


def hashed(e: Expr, where: dict[str, int]) -> object:
    """A value that tells any two expressions apart at most positions, reals or not."""
    if isinstance(e, Index):
        return where[e.axis]
    if isinstance(e, Read):
        return (e.tensor, tuple(position(i, where) for i in e.indices))
    if isinstance(e, Call):
        return (e.op, tuple(hashed(a, where) for a in e.args))
    return (e.dtype, hashed(e.arg, where)) if isinstance(e, Cast) else repr(e)


wheres = st.fixed_dictionaries({a: st.integers(-9, 9) for a in AXES})


@settings(max_examples=100, deadline=None)
@given(affine(-3), st.dictionaries(st.sampled_from(AXES), affine(-3)), wheres)
def test_substituted_indices_compose(index, inner, where) -> None:
    moved = where | {a: position(i, where) for a, i in inner.items()}
    result = substitute(index, inner)
    assert position(result, where) == position(index, moved)
    assert result.terms == tuple(sorted((a, c) for a, c in result.terms if c))


reads_only = st.recursive(leaves.filter(lambda e: not isinstance(e, Index)), _calls, max_leaves=8)


@settings(max_examples=100, deadline=None)
@given(reads_only, st.dictionaries(st.sampled_from(AXES), affine(-3)), wheres)
def test_a_read_elsewhere_is_the_read_at_the_other_position(e, inner, where) -> None:
    moved = where | {a: position(i, where) for a, i in inner.items()}
    assert hashed(at(e, inner), where) == hashed(e, moved)


@settings(max_examples=50, deadline=None)
@given(affine(-3), wheres)
def test_an_axis_symbol_elsewhere_is_the_index_as_a_number(index, where) -> None:
    e = at(Call("mul", (Index("m"), Index("k"))), {"m": index})
    found = value(e, lambda r: None, lambda a: where[a])
    assert found == position(index, where) * where["k"]


@settings(max_examples=100, deadline=None)
@given(expressions)
def test_renaming_there_and_back_changes_nothing(e: Expr) -> None:
    letters = {a: f"z{i}" for i, a in enumerate(AXES)}
    names = {t: t + "_" for t in TENSORS}
    there = rename(e, names, letters)
    assert not set(axes(there)) & set(AXES)
    back = rename(there, {v: k for k, v in names.items()}, {v: k for k, v in letters.items()})
    assert repr(back) == repr(e)
    assert rewrite(e, lambda leaf: leaf) == e
