"""What is common to loops that are written as text."""

from __future__ import annotations

from mcfuser.codegen.llvm.written import each, function_text


def test_what_fills_no_vector_is_in_narrower_ones() -> None:
    assert list(each(37, 8, lambda at: f"x[{at}]")) == [
        "for v in range(4):", "    for j in T.vectorized(8):", "        x[v * 8 + j]",
        "for j in T.vectorized(4):", "    x[32 + j]", "x[36]",
    ]  # fmt: skip


def test_a_function_has_its_views_before_its_statements() -> None:
    text = function_text("f(x: T.Buffer((2,)))", ["y = 1"], ["for i in range(2):", "    x[i] = y"])
    lines = [line.strip() for line in text.splitlines()]
    assert lines[1:3] == ["def f(x: T.Buffer((2,))):", "y = 1"] and lines[-1] == "x[i] = y"
