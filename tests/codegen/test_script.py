"""PrimFuncs made of text, beside those that TVM's own parser makes."""

from __future__ import annotations

from random import Random

import pytest
import tvm
from tvm.error import InternalError

from mcfuser.codegen.script import prim_func
from mcfuser.codegen.tensorir import TensorirSource, generate
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.schedule import Schedule
from tests.support.drawn_schedules import drawn
from tests.support.paths import GOLDEN

HEAD = '@T.prim_func(s_tir=True, private=True)\ndef f(a: T.Buffer((8,), "float32"), n: T.int32):\n'


def agree(text: str) -> None:
    made, parsed = prim_func(text), tvm.script.from_source(text)
    tvm.ir.assert_structural_equal(made, parsed, map_free_vars=True)
    assert made.script() == parsed.script()  # what is equal may have other names


def written(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(p.stem for p in (GOLDEN / "tensorir").glob("*.py")))
def test_kernels_are_what_tvm_parses(name: str) -> None:
    agree((GOLDEN / "tensorir" / f"{name}.py").read_text())


@pytest.mark.parametrize("lines", [
    ['T.func_attr({"tirx.noalias": True})', "a[0] = T.float32(1)"],
    ["for i in range(8):", "    a[i] = T.float32(0)"],
    ["for i in range(n, n + 4):", "    a[i] = a[i + 1] * T.float32(2)"],
    ["for i in T.vectorized(8):", "    a[i] = T.if_then_else(i < n, a[i], T.float32(0))"],
    ["for i in range(2):", "    for i in range(4):", "        a[i] = T.float32(1)",
     "    a[i] = T.float32(2)"],
    ["for i, j in T.grid(2, 4):", "    a[i * 4 + j] = T.float32(1)"],
    ["x: T.let[T.int32] = n // 2", "for i in range(x):", "    x: T.let[T.int32] = i + 1",
     "    a[x] = T.float32(1)", "a[x] = T.float32(2)"],
    ["x: T.let[T.int32] = 3", "a[x] = T.float32(1)"],
    ["if n < 4:", "    a[n] = T.float32(1)"],
    ["if n < 4:", "    a[n] = T.float32(1)", "elif n < 6:", "    a[0] = T.float32(2)", "else:",
     "    a[1] = T.float32(3)"],
    ["if 3 < 4:", "    a[0] = T.float32(1)", "else:", "    a[0] = T.float32(2)"],
    ["if 4 < 3:", "    a[0] = T.float32(1)", "else:", "    a[0] = T.float32(2)"],
    ["if 4 < 3:", "    a[0] = T.float32(1)", "a[1] = T.float32(2)"],
    ['assert n >= 1, "too few"', "for i in T.parallel(n):", '    assert i < 8, "too many"',
     "    a[i] = T.float32(1)", "a[0] = T.float32(2)"],
    ['with T.sblock("root"):', "    T.reads()", "    T.writes()",
     '    b = T.alloc_buffer((2, n), "float32")', "    b[1, n - 1] = a[0]", "    a[1] = b[1, 0]"],
    ['T.evaluate(T.call_extern("int32", "g", T.address_of(a[0])))'],
    ['T.call_packed("g", a.data, n, T.int64(0))'],
])  # fmt: skip
def test_statements_are_what_tvm_parses(lines: list[str]) -> None:
    agree(written(*lines))


@pytest.mark.parametrize("head", [
    "@T.prim_func\ndef f(a: T.Buffer((8,), 'float32')):",
    "@T.prim_func(s_tir=True)\ndef f(a: T.Buffer((8,), 'float32')):",
    "@T.prim_func(private=False)\ndef f(a: T.Buffer((8,), 'float32')):",
])  # fmt: skip
def test_functions_are_what_they_are_told_to_be(head: str) -> None:
    agree(f"{head}\n    a[0] = T.float32(1)\n")


def test_any_kernel_is_what_tvm_parses() -> None:
    def make(kind: str, schedule: Schedule) -> TensorirSource:
        return generate(schedule, "kernel", TensorirKnobs(6, 2, 8))

    for d in drawn(Random(0), 5, make):
        agree(d.source.text)


@pytest.mark.parametrize("line", [
    "while n:\n        a[0] = T.float32(1)", "a[0] += T.float32(1)", "a[0] = a[1] = T.float32(1)",
    "assert n > 1", "x: T.let[T.int32]",
    "return", "import os", "for i in range(2):\n        del a",
    "for i in range(2):\n        a[i] = T.float32(1)\n    else:\n        a[0] = T.float32(1)",
    "with T.sblock('root') as b:\n        a[0] = T.float32(1)",
])  # fmt: skip
def test_other_statements_are_told(line: str) -> None:
    with pytest.raises(SyntaxError, match=r"line \d+: no kernel has such a statement"):
        prim_func(written(line))


@pytest.mark.parametrize(
    "text", ["", "x = 1", "def f():\n    pass\n", HEAD + "    pass\n" + "y = 2"]
)
def test_what_is_no_function_is_told(text: str) -> None:
    with pytest.raises(SyntaxError, match="a text is one function"):
        prim_func(text)


def test_what_means_nothing_is_told() -> None:
    with pytest.raises(NameError, match="'y' is not defined"):
        prim_func(written("a[y] = T.float32(1)"))
    with pytest.raises(NameError, match="'open' is not defined"):  # nor has Python's any meaning
        prim_func(written('T.evaluate(open("x"))'))
    with pytest.raises(NameError, match="'i' is not defined"):  # behind its loop
        prim_func(written("for i in range(2):", "    a[i] = T.float32(1)", "a[i] = T.float32(2)"))
    with pytest.raises(InternalError, match="undefined variable i"):
        prim_func(written("i = T.int32()", "a[i] = T.float32(2)"))
