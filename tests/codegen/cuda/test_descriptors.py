"""Descriptors of the tiles that products read: in text, and in what ptxas makes."""

from __future__ import annotations

import pytest

from mcfuser.chain import attention
from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.cuda.descriptors import at_risk, misread
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.statement import Illegal
from tests.support.triton_cases import scheduled

SHARED = "HGMMA.64x64x16.F32 R24, gdesc[UR12], R24, gsb0"
COMPUTED = "HGMMA.64x64x16.F32 R24, R88, gdesc[UR12].tnspB, R24"


def instructions(*lines: str) -> str:
    """Instructions as nvdisasm prints them; a line that ends with a colon is a label."""
    written = (
        line if line.endswith(":") else f"        /*{16 * i:04x}*/ {'':15}{line} ;"
        for i, line in enumerate(lines)
    )  # fmt: skip
    return "\n".join(written)


def tile(register: int, layout: str = "0x40000040") -> list[str]:
    """Of the address in UR32, a descriptor."""
    return [f"USHF.R.U32.HI UR{register}, URZ, 0x4, UR32",
            f"USGXT.U32 UR{register}, UR{register}, 0xe",
            f"UMOV UR{register + 1}, {layout}"]  # fmt: skip


def test_a_product_reads_two_tiles_or_one() -> None:
    assert not misread(instructions(*tile(12), *tile(14), SHARED))
    assert not misread(instructions(*tile(14), COMPUTED))
    assert misread(instructions(*tile(14), SHARED))
    assert misread(instructions(*tile(12), COMPUTED))


def test_offsets_keep_a_descriptor() -> None:
    together = "UIADD3.64 UR14, UR20, 0x80, URZ"
    words = ["UIADD3 UR14, UP1, UR20, 0x40, URZ", "UIADD3.X UR15, UR21, URZ, URZ, UP1, !UPT"]
    folded = ["UMOV UR4, URZ", "UIADD3 UR14, UP0, UR20, 0x2, URZ",
              "UIADD3.X UR15, UR4, 0x40000040, URZ, UP0, !UPT"]  # fmt: skip
    for sums in ([together], words, folded):
        assert not misread(instructions(*tile(20), *sums, COMPUTED))
        assert misread(instructions(*tile(22), *sums, COMPUTED))


def test_what_comes_from_other_registers_is_taken_for_right() -> None:
    brought = ["R2UR UR14, R2", "R2UR UR15, R4", COMPUTED]
    assert not misread(instructions(*brought))
    more = ["UIADD3.64 UR14, UR14, 0x2, URZ", COMPUTED]
    assert not misread(instructions(*brought, *more))


@pytest.mark.parametrize("source", ["R2UR UR20, R8", "@P0 R2UR UR20, R8"])
def test_the_words_of_a_descriptor_are_not_of_one_register(source: str) -> None:
    """As ptxas makes them, also where a register holds something else by now."""
    sums = ["UIADD3 UR14, UP0, UR20, 0x40, URZ", "UIADD3.X UR15, UR20, -0x7fffffe0, URZ, UP0, !UPT"]
    assert misread(instructions(*tile(20), *sums, COMPUTED))
    assert misread(instructions(*tile(20), source, *sums, COMPUTED))


def groups(*first: str, second: tuple[str, ...] = ()) -> str:
    """Two paths from an indirect branch, which both lead back to it."""
    return instructions(
        *tile(30), ".L_x_1:", "BRX R4 -0x1f0 (*\"BRANCH_TARGETS .L_x_2,.L_x_9\"*)",
        ".L_x_2:", *first, COMPUTED, "BRA `(.L_x_1)",
        ".L_x_9:", *second, COMPUTED, "BRA `(.L_x_1)",
    )  # fmt: skip


def test_what_one_path_computes_another_cannot_read() -> None:
    added = "UIADD3.64 UR14, UR30, 0x2, URZ"
    assert not misread(groups(added, second=(added,)))
    assert misread(groups(added))
    assert misread(groups(added, second=("UIADD3.64 UR14, UR14, 0x2, URZ",)))


def test_a_loop_that_goes_on_from_a_descriptor_has_one() -> None:
    loop = [".L_x_3:", COMPUTED, "UIADD3.64 UR14, UR14, 0x80, URZ", "@P0 BRA `(.L_x_3)", "EXIT"]
    assert not misread(instructions(*tile(14), *loop))
    assert misread(instructions("UMOV UR15, 0x40000040", *loop))


def test_what_perhaps_is_written_is_not_known() -> None:
    maybe = "@UP0 UMOV UR15, 0x40000040"
    assert not misread(instructions(*tile(14), maybe, COMPUTED))
    assert misread(instructions(*tile(14, "0x80000020"), maybe, COMPUTED))
    assert not misread(instructions("UTMALDG.4D [UR8], [UR14]"))
    assert not misread("")


def test_products_outside_loops_are_at_risk() -> None:
    product, back = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "@%p1 bra \t$L__BB0_1;"
    loop = ["$L__BB0_1:", product, back]
    assert not at_risk("\n".join(loop))
    assert at_risk("\n".join([*loop, product]))
    assert at_risk("\n".join([*loop, "brx.idx \t%r20, $L_brx_0;"]))


def heads(extent: int, groups: bool = False) -> TritonSource:
    chain = attention(8, extent, extent, 64, 64, "float16")
    tiles = {"m": 256 if groups else 64, "n": 64, "k": 64, "h": 64}
    knobs = TritonKnobs(warps=4, stages=2, tma=groups, groups=groups)
    return generate(scheduled(chain, "mh.nk", tiles), "kernel", knobs)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_instructions_of_kernels_at_risk_are_read(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def told(instructions: str) -> bool:
        read.append(instructions)
        return wrong

    monkeypatch.setattr("mcfuser.codegen.cuda.cubin.misread", told)
    compile_source(heads(512), "sm_90")
    assert not read  # all its products are in a loop
    if not wrong:
        compile_source(heads(500), "sm_90")
        assert "HGMMA" in read[0]
        return
    with pytest.raises(Illegal, match="an address that nothing has computed"):
        compile_source(heads(500), "sm_90")


@pytest.mark.parametrize("extent", [500, 512])
def test_four_warp_groups_read_their_tiles(extent: int) -> None:
    compile_source(heads(extent, groups=True), "sm_90")
