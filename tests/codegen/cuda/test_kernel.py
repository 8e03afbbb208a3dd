"""Kernels in CUDA C, their names, and what launches them."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.codegen.cuda.kernel import (
    GivenArray,
    KernelStep,
    SourceKernel,
    SourceLaunch,
    SourceOperator,
    launch_text,
    one_unit,
)
from mcfuser.codegen.cuda.scalar import HEADERS
from mcfuser.codegen.script import prim_func

ARRAYS = (GivenArray("x", (4, 3), "float16"), GivenArray("out", (12,), "float16"))
OPERATOR = SourceOperator("move", ARRAYS, 1, "// what is called\n", (
    KernelStep("first", "out[threadIdx.x] = x[threadIdx.x];", 12, 1),
    KernelStep("second", "out[0] = out[1];", 1, 2),
))  # fmt: skip


def test_a_text_has_a_function_for_every_step() -> None:
    text = OPERATOR.text("k")
    assert text.count('extern "C" __global__') == 2 and "// what is called" in text
    taken = "const __half* __restrict__ x, __half* __restrict__ out"
    assert f"__launch_bounds__(12)\nk_first({taken}) {{\n  out[threadIdx.x]" in text
    assert f"__launch_bounds__(1)\nk_second({taken})" in text


def test_names_tell_texts() -> None:
    (one, _), (other, _) = OPERATOR.kernel(), replace(OPERATOR, functions="").kernel()
    assert one == OPERATOR.kernel()[0] and one.name.startswith("move_")
    assert one.name != other.name and one.content == one.text.encode()
    assert [name.rsplit("_", 1)[1] for name, _ in one.functions] == ["first", "second"]


def test_steps_are_launched_in_their_order() -> None:
    kernel, text = OPERATOR.kernel()
    (first, second) = [line.strip() for line in text.splitlines() if "call_packed" in line]
    assert first == f'T.call_packed("{kernel.functions[0][0]}", x.data, out.data, 12, 1, 1, 1)'
    assert second.endswith('_second", x.data, out.data, 1, 2, 1, 1)')
    function = prim_func(text)
    assert len(function.params) == 2
    assert "T.reads(x[0:4, 0:3])" in text and "T.writes(out[0:12])" in text


def test_shared_memory_is_said_where_there_is_some() -> None:
    kernel = SourceKernel((("k", ("handle", "handle")),), "", 64)
    text = launch_text(kernel, ARRAYS, 1, [SourceLaunch("k", 32, (2, 3, 1))])
    assert 'T.call_packed("k", x.data, out.data, 32, 2, 3, 1, 64)' in text


def test_texts_of_one_unit_have_the_headers_once_and_a_namespace_each() -> None:
    own = [f"int own() {{ return {i}; }}\n" for i in range(2)]
    texts = [replace(OPERATOR, functions=functions).text("k") for functions in own]
    unit = one_unit(texts)
    assert unit.startswith(HEADERS) and unit.count(HEADERS) == 1
    spaces = unit.split("namespace ")[1:]
    assert [space.split(" ")[0] for space in spaces] == ["k0", "k1"]
    for text, space in zip(texts, spaces, strict=True):
        assert text.removeprefix(HEADERS) in space and space.endswith("}\n")
