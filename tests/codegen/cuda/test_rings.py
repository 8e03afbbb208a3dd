"""Rings that are too small for an unfinished product: in text, and in what Triton makes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.cuda.rings import overwritten
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.statement import Illegal
from tests.support.chains import rms_norm_product
from tests.support.triton_cases import scheduled

COPY = (
    "ttg.async_copy_global_to_local %p, %{0} mask %in : tensor<64x64x!tt.ptr<f16>> -> <64x64xf16>"
)
MAPPED = "ttng.async_tma_copy_global_to_local %map[%i, %j] %{0}, %bar, %yes : !tt.tensordesc<f16>"


def kernel(places: int, *body: str) -> str:
    """A loop of these lines, with tiles `a` (in a ring of `places`) and `b` (in one of three)."""
    lines = [f"%{x} = ttg.local_alloc : () -> !ttg.memdesc<{n}x64x64xf16, #s, #smem, mutable>"
             for x, n in (("ring_a", places), ("ring_b", 3))]  # fmt: skip
    lines.append("%r = scf.for %k = %0 to %512 step %64 iter_args(%c = %zero) -> (f32) : i32 {")
    views = [f"%{x} = ttg.memdesc_index %ring_{x}[%i] : !ttg.memdesc<64x64xf16>" for x in "ab"]
    written = [f"%{x}_next = ttg.memdesc_index %ring_{x}[%j] : !ttg.memdesc<64x64xf16>"
               for x in "ab"]  # fmt: skip
    lines += [f"  {line}" for line in (*views, *written, *body, "scf.yield %d")]
    return "\n".join(["func {", *(f"  {line}" for line in (*lines, "}")), "}"])


def product(pending: int, turned: bool = False) -> list[str]:
    view = ["%t = ttg.memdesc_trans %a {order = array<i32: 1, 0>} : !ttg.memdesc<64x64xf16>"]
    a = "%t" if turned else "%a"
    return [
        *(view if turned else []),
        f"%d = ttng.warp_group_dot {a}, %b, %c {{inputPrecision = 0 : i32, isAsync = true}} : f32",
        f"%e:3 = ttng.warp_group_dot_wait %d, {a}, %b {{pendings = {pending} : i32}} : f32",
    ]


@pytest.mark.parametrize("copy", [COPY, MAPPED])
@pytest.mark.parametrize("turned", [False, True])
def test_a_tile_is_loaded_over_one_that_an_unfinished_product_reads(
    copy: str, turned: bool
) -> None:
    body = [*product(1, turned), copy.format("a_next"), copy.format("b_next")]
    assert overwritten(kernel(2, *body), 3)
    assert not overwritten(kernel(3, *body), 3)
    assert overwritten(kernel(3, *body), 4)
    early = [copy.format("a_next"), *product(1, turned)]
    assert overwritten(kernel(2, *early), 3)  # the product before is unfinished, too


def test_an_ended_product_needs_no_place_more() -> None:
    assert not overwritten(kernel(2, *product(0), COPY.format("a_next")), 3)
    assert not overwritten(kernel(2, *product(1), COPY.format("b_next")), 3)
    assert not overwritten(kernel(2, COPY.format("a_next"), *product(0)), 3)


def norm(rows: int, stages: int, tma: bool) -> TritonSource:
    schedule = scheduled(rms_norm_product(), "mn.k", {"m": rows, "n": 32, "k": 32})
    return generate(schedule, "kernel", TritonKnobs(warps=4, stages=stages, tma=tma))


@pytest.mark.parametrize("tma", [False, True])
def test_a_product_whose_tile_threads_read_has_ended_in_its_iteration(tma: bool) -> None:
    compile_source(norm(64, 3, tma), "sm_90")


def test_triton_makes_such_rings() -> None:
    """Once this fails, Triton's issue 6691 is solved, and the line may go."""
    source = norm(64, 3, False)
    text, count = re.subn(r"tl\.inline_asm_elementwise\(.*\[(\w+)\].*\)", r"\1", source.text)
    assert count == 1
    with pytest.raises(Illegal, match="over one that an unfinished product reads"):
        compile_source(replace(source, text=text), "sm_90")
