"""What a TensorIR function does with one of its parameters, line of the cache by line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace

_CALLS = SimpleNamespace(
    if_then_else=lambda condition, a, b: a if condition else b,
    Ramp=lambda first, step, count: first,
    min=min,
    max=max,
)


def touched(text: str, tensor: str, cache: int, line: int) -> list[tuple[str, int]]:
    """The lines of `line` elements of a tensor that a function's text reads ("read") or fetches to
    a cache with this number of LLVM's ("fetch"), in the order of one core. Loops that are unrolled
    or vectorized are walked for their first position alone."""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    program = "\n".join(_block(function.body, f"{tensor}_flat", cache, ""))
    found: list[tuple[str, int]] = []
    exec(program, {"T": _CALLS, "touch": lambda what, at: found.append((what, at // line))})
    return found


def _block(body: list[ast.stmt], flat: str, cache: int, indent: str) -> Iterator[str]:
    """A program that calls `touch` for each element that these statements read or fetch."""
    for s in body:
        text = ast.unparse(s)
        if isinstance(s, ast.AnnAssign):
            assert s.value is not None
            yield f"{indent}{ast.unparse(s.target)} = {ast.unparse(s.value)}"
        elif isinstance(s, ast.With):
            yield from _block(s.body, flat, cache, indent)
        elif isinstance(s, ast.For) and flat in text:
            assert isinstance(s.iter, ast.Call)
            trips = ", ".join(map(ast.unparse, s.iter.args))
            serial = ast.unparse(s.iter.func) in ("range", "T.parallel")
            yield f"{indent}for {ast.unparse(s.target)} in range({trips if serial else 1}):"
            yield from _block(s.body, flat, cache, indent + " ")
        elif "llvm.prefetch" not in text:
            yield from (f"{indent}touch('read', {e})" for e in _elements(s, flat))
        elif f"T.int32(0), T.int32({cache}), T.int32(1)" in text:
            yield from (f"{indent}touch('fetch', {e})" for e in _elements(s, flat))


def _elements(s: ast.stmt, flat: str) -> Iterator[str]:
    for node in ast.walk(s):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == flat:
            yield ast.unparse(node.slice)
