"""Generated kernels compile for every GPU of the catalogue, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mcfuser.chain import attention
from mcfuser.codegen.cuda.cubin import Binary, compile_source
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.expression import bind, tilings
from mcfuser.space.statement import Illegal
from tests.support.triton_cases import LINES, chain_named, scheduled

ELF = b"\x7fELF"


def small(dtype: str = "float16", name: str = "kernel", **lowering: int) -> TritonSource:
    tiles = {"m": 32, "n": 32, "k": 32, "h": 32}
    schedule = scheduled(attention(2, 64, 64, 32, 32, dtype), "mh.nk", tiles)
    return generate(schedule, name, TritonKnobs(**lowering))


@cache
def compiled(arch: str) -> Binary:
    return compile_source(small(), arch)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_every_architecture(arch: str) -> None:
    binary = compiled(arch)
    assert binary.cubin.startswith(ELF)
    assert b"kernel" in binary.cubin
    assert 16 < binary.registers <= 255
    assert 0 < binary.shared < 32 * 1024
    assert (binary.spills, binary.threads, binary.name) == (0, 128, "kernel")


WIDE = ("gemm", "masked", "local", "mlp", "layernorm")
"""Products, and with them a mask, a domain and functions, and no product: the same in float32."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in ("gemm", *LINES)), *((name, "float32") for name in WIDE)],
)
def test_every_chain(name: str, dtype: str) -> None:
    """Ragged extents and tiles that are no power of two: every mask and padding is compiled."""
    extents = {"b": 2, "m": 40, "n": 72, "k": 24, "h": 16, "g": 2}
    chain = chain_named(name, extents, dtype)
    expression = bind(chain, next(e for e in tilings(chain) if e.deep))
    tiles = {"b": 1, "m": 24, "n": 24, "k": 16, "h": 16, "g": 2}
    binary = compile_source(generate(scheduled(chain, expression, tiles), "kernel"), "sm_80")
    assert binary.cubin.startswith(ELF)


def test_tiles_kept_in_registers_compile() -> None:
    tiles = {"m": 16, "n": 32, "k": 16, "h": 32}
    schedule = scheduled(attention(1, 32, 64, 32, 32, "float16"), "mh.kn", tiles)
    assert compile_source(generate(schedule, "kernel"), "sm_90").spills == 0


def test_rows_one_at_a_time_compile() -> None:
    chain = chain_named("softmax", {"b": 2, "m": 8, "n": 96}, "float16")
    schedule = scheduled(chain, "bm.n", {"b": 1, "m": 1, "n": 32})
    assert compile_source(generate(schedule, "kernel"), "sm_90").shared < 1024


def test_spills_are_seen() -> None:
    tiles = {"m": 128, "n": 16, "k": 64, "h": 256}
    chain = attention(1, 128, 256, 64, 256, "float16")
    source = generate(scheduled(chain, "mh.nk", tiles), "kernel", TritonKnobs(warps=4))
    binary = compile_source(source, "sm_80")
    assert binary.spills > 0


def test_stages_take_shared_memory() -> None:
    assert small(stages=2) == small()
    assert compile_source(small(stages=3), "sm_90").shared > compiled("sm_90").shared


def test_the_same_source_gives_the_same_bytes() -> None:
    assert compile_source(small(), "sm_89") == compiled("sm_89")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        compile_source(small(), "sm_90")
        with pytest.raises(Illegal):
            compile_source(replace(small(), text="nonsense("), "sm_90")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.dot(", "tl.no_such_operator("),
        ("arange(0, 32)", "arange(0, 31)"),
        ("import triton\n", "import no_such_module\n"),
    ],
)
def test_what_triton_refuses_is_a_reason(old: str, new: str) -> None:
    source = small()
    assert old in source.text
    with pytest.raises(Illegal, match=r"Triton does not compile it: .+") as caught:
        compile_source(replace(source, text=source.text.replace(old, new)), "sm_90")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_70", "gfx942", "sm_90a"])
def test_an_unknown_architecture_is_a_reason(arch: str) -> None:
    with pytest.raises(Illegal):
        compile_source(small(), arch)


def test_generating_imports_neither_triton_nor_tvm() -> None:
    heavy = "{'triton', 'tvm', 'torch'} & set(sys.modules)"
    words = f"import sys, mcfuser.codegen.cuda.cubin; print({heavy})"
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
