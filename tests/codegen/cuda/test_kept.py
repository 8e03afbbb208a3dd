"""Registers that a loop keeps for its products: in text, and in what ptxas makes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from mcfuser.chain import attention
from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.cuda.kept import keeps_operands, lost
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.statement import Illegal
from tests.support.triton_cases import scheduled

SIZE = "sync.aligned.m64n64k16.f32.f16.f16"


def text(*products: str, body: str = "") -> str:
    """A loop with a product for each operand (a letter), after a load of the operand `p`."""
    lines = ["mov.b32 \t%a1, 0;", "$L__BB0_1:", "ld.shared.v2.b32 \t{%p1, %p2}, [%at];", body]
    lines += [f"wgmma.mma_async.{SIZE} {{%c1,%c2}}, {{%{x}1,%{x}2}}, %rd8, 1, 1, 1, 0;"
              for x in products]  # fmt: skip
    return "\n".join([*lines, "@%more bra \t$L__BB0_1;", "ret;"])


def instructions(*body: str) -> str:
    """A loop of instructions, and one of the places where a wait goes on, behind it."""
    lines = [f"        /*{16 * i:04x}*/ {'':15}{line} ;" for i, line in enumerate(body)]
    wait = ["        /*0f00*/              @!P0 BRA `(.L_x_4) ;", ".L_x_5:",
            "        /*0f10*/                   F2FP.F16.F32.PACK_AB R88, R15, R88 ;",
            "        /*0f20*/                   BRA `(.L_x_9) ;"]  # fmt: skip
    return "\n".join([".L_x_4:", ".L_x_9:", *lines, *wait])


def product(register: int, result: int = 24) -> str:
    return f"HGMMA.64x64x16.F32 R{result}, R{register}, gdesc[UR12], R{result}"


def test_an_operand_is_kept_where_the_loop_does_not_write_its_registers() -> None:
    assert keeps_operands(text("a", "p"))
    assert not keeps_operands(text("p"))
    assert not keeps_operands(text("a", body="@%p9 mov.b32 \t%a2, %a1;"))
    assert not keeps_operands(text("a").replace("bra \t$L__BB0_1", "bra \t$L__BB0_2"))


@pytest.mark.parametrize(
    "between",
    ["F2FP.F16.F32.PACK_AB R101, R26, R101", "@!P2 FMUL R103, R8, R8", "IMAD.WIDE R102, R3, R4, R6",
     "SHFL.BFLY PT, R100, R7, 0x1, 0x1f"],
)  # fmt: skip
def test_what_the_loop_computes_over_a_kept_operand_is_lost(between: str) -> None:
    two = text("a", "p")
    assert lost(two, instructions(product(100), between, product(60)))
    assert lost(two, instructions(between, product(100), product(60)))
    assert not lost(two, instructions(product(104), between, product(60)))


def test_a_product_writes_a_whole_tile() -> None:
    assert lost(text("a", "p"), instructions(product(100), product(60, result=80)))
    assert not lost(text("a", "p"), instructions(product(112), product(60, result=80)))


def test_what_is_brought_back_is_not_lost() -> None:
    two, over = text("a", "p"), "FMUL R100, R8, R8"
    for back in ("LDL.128 R100, [R1]", "LDSM.16.M88.4 R100, [R3+UR24]", "MOV R100, R55",
                 "IMAD.MOV.U32 R100, RZ, RZ, R55"):  # fmt: skip
        assert not lost(two, instructions(back, product(100), over, product(60)))
        assert not lost(two, instructions(product(100), over, product(60), back))
        assert lost(two, instructions(back, over, product(100), product(60)))
    half = instructions("LDL.64 R100, [R1]", product(100), "FMUL R102, R8, R8", product(60))
    assert lost(two, half)


def test_an_unrolled_loop_has_its_products_several_times() -> None:
    body = [product(100), product(60)]
    assert not lost(text("a", "p"), instructions(*body, *body))
    assert lost(text("a", "p"), instructions(*body, "FMUL R100, R8, R8", *body))


def followed(ptx: str, *products: str, body: str = "") -> str:
    """The text, with products behind its loop."""
    lines = [f"wgmma.mma_async.{SIZE} {{%c1,%c2}}, {{%{x}1,%{x}2}}, %rd8, 1, 1, 1, 0;"
             for x in products]  # fmt: skip
    return ptx.replace("ret;", "\n".join([body, *lines, "ret;"]))


def behind(loop: str, *body: str) -> str:
    """Instructions between a loop and the end of the kernel."""
    lines = [f"        /*{4096 + 16 * i:04x}*/ {'':15}{line} ;" for i, line in enumerate(body)]
    end = "        /*0e00*/                   EXIT ;"
    first, *waits = loop.split(".L_x_5:")
    return "\n".join([first, *lines, end, ".L_x_5:" + waits[0]])


def test_what_a_loop_keeps_is_there_behind_it() -> None:
    """The products of an iteration that is written apart read the same operand."""
    apart, over = followed(text("a", "p"), "a", "p"), "FMUL R100, R8, R8"
    loop = instructions(product(100), product(60))
    assert not lost(apart, behind(loop, product(100), product(60), over))
    assert lost(apart, behind(loop, over, product(100), product(60)))
    assert not lost(apart, behind(loop, over, "LDL.128 R100, [R1]", product(100), product(60)))
    computed = instructions(product(100), "FMUL R60, R8, R8", product(60))
    assert lost(apart, behind(computed, product(60), product(60)))
    assert not lost(followed(text("a", "p"), "p"), behind(loop, over, product(100)))


def test_an_operand_that_is_written_behind_the_loop_is_another() -> None:
    apart = followed(text("a", "p"), "a", body="mov.b32 \t%a1, %b1;")
    loop = instructions(product(100), product(60))
    assert not lost(apart, behind(loop, "FMUL R100, R8, R8", product(100)))


def heads(stages: int) -> TritonSource:
    chain = attention(8, 1024, 1024, 64, 64, "float16")
    schedule = scheduled(chain, "mh.nk", {"m": 64, "n": 64, "k": 64, "h": 64})
    return generate(schedule, "kernel", TritonKnobs(warps=4, stages=stages, tma=True))


@pytest.mark.parametrize("over", [False, True])
def test_the_instructions_of_a_kernel_that_keeps_operands_are_read(
    over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.6 keeps the queries of attention in registers, 3.9 in shared memory."""
    read: list[str] = []

    def told(ptx: str, instructions: str) -> bool:
        assert "wgmma.mma_async" in ptx
        read.append(instructions)
        return over

    monkeypatch.setattr("mcfuser.codegen.cuda.cubin.keeps_operands", lambda ptx: True)
    monkeypatch.setattr("mcfuser.codegen.cuda.cubin.lost", told)
    with pytest.raises(Illegal, match="ptxas writes over registers") if over else nullcontext():
        compile_source(heads(2), "sm_90")
    assert read[0].count("HGMMA") >= 8


def test_no_kernel_of_attention_loses_its_queries() -> None:
    for stages in (2, 3):
        compile_source(heads(stages), "sm_90")
