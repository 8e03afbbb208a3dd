"""Generated Triton reads as it did, and compiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from tests.support.compiled import compile_all
from tests.support.hopper_chains import chain_of
from tests.support.paths import GOLDEN
from tests.support.triton_cases import chain_named, run_time, scheduled

FOLDER = GOLDEN / "triton"
EXTENTS = {"b": 12, "m": 512, "n": 256, "k": 64, "h": 64}


@dataclass(frozen=True)
class Golden:
    chain: str
    expression: str
    tiles: str
    dtype: str = "float16"
    extents: Mapping[str, int] = field(default_factory=dict)
    split: str | None = None
    parts: int = 1
    run_time: str = ""
    lowering: TritonKnobs = TritonKnobs()  # noqa: RUF009 - frozen
    dependent: bool = False


GROUPS = TritonKnobs(tma=True, groups=True)
GOLDENS = {
    "attention_deep": Golden("attention", "mh.nk", "m=64 n=64 k=64 h=64"),
    "attention_whole_scores": Golden("attention", "mh.kn", "m=64 n=128 k=32 h=64"),
    "attention_flat": Golden("attention", "m.n(k,h)", "m=64 n=64 k=32 h=32"),
    "attention_decode": Golden(
        "attention", "mh.nk", "m=1 n=48 k=64 h=64", "float32", {"m": 1, "n": 77}
    ),
    "attention_causal": Golden("causal", "mh.nk", "m=64 n=32 k=64 h=64", "float32"),
    "attention_causal_whole": Golden(
        "causal", "mh.kn", "m=32 n=64 k=32 h=64", extents={"n": 128}
    ),
    "attention_causal_tma": Golden(
        "causal", "mh.nk", "m=64 n=64 k=64 h=64", lowering=TritonKnobs(stages=3, tma=True)
    ),
    "attention_local": Golden("local", "mh.nk", "m=64 n=32 k=64 h=64", extents={"n": 512}),
    "attention_masked": Golden("masked", "mh.nk", "m=32 n=32 k=64 h=64", "float32", {"n": 200}),
    "attention_split": Golden(
        "attention", "mh.nk", "m=1 n=64 k=64 h=64", extents={"m": 1, "n": 2048}, split="n", parts=8
    ),
    "attention_split_last": Golden(
        "attention", "mh.nk", "m=1 n=64 k=64 h=64", extents={"m": 1, "n": 2048}, split="n", parts=8,
        lowering=TritonKnobs(combine="last"),
    ),
    "attention_run_time": Golden("causal", "mh.nk", "m=64 n=64 k=64 h=64", run_time="bmn"),
    "gemm_deep": Golden("gemm", "mh.nk", "m=64 n=64 k=32 h=64"),
    "gemm_padded": Golden("gemm", "mh.nk", "m=48 n=96 k=64 h=64", extents={"m": 500}),
    "gemm_flat": Golden("gemm", "m.n(k,h)", "m=64 n=64 k=64 h=32"),
    "mlp": Golden("mlp", "bm.n(k,h)", "b=1 m=32 n=64 k=64 h=64"),
    "linear": Golden("linear", "mn.k", "m=64 n=64 k=32", "float32"),
    "linear_tma": Golden(
        "linear", "mn.k", "m=64 n=128 k=64", extents={"m": 500, "k": 512},
        lowering=TritonKnobs(stages=4, tma=True),
    ),
    "linear_split": Golden(
        "linear", "mn.k", "m=64 n=64 k=32", extents={"m": 60, "k": 1024}, split="k", parts=5
    ),
    "linear_split_run_time": Golden(
        "linear", "mn.k", "m=64 n=64 k=32", extents={"k": 1024}, split="k", parts=5, run_time="mk"
    ),
    "layernorm": Golden("layernorm", "m.n", "m=4 n=96", "float32", {"n": 96}),
    "softmax": Golden("softmax", "bm.n", "b=1 m=1 n=128"),
    "norm_product": Golden("norm_product", "mn.k", "m=32 n=64 k=32"),
    "attention_groups": Golden("causal", "mh.nk", "m=128 n=64 k=64 h=64", lowering=GROUPS),
    "attention_groups_ragged": Golden(
        "attention", "mh.nk", "m=128 n=64 k=80 h=80",
        extents={"m": 577, "n": 577, "k": 80, "h": 80}, lowering=GROUPS,
    ),
    "gated_groups": Golden(
        "gated", "mn.k", "m=192 n=64 k=64", "bfloat16", {"k": 512}, lowering=GROUPS
    ),
    "attention_dependent_groups": Golden(
        "causal", "mh.nk", "m=128 n=64 k=64 h=64", lowering=GROUPS, dependent=True
    ),
    "linear_dependent_split": Golden(
        "linear", "mn.k", "m=64 n=64 k=32", extents={"m": 60, "k": 1024}, split="k", parts=5,
        dependent=True,
    ),
    "attention_parts": Golden(
        "attention", "mh.nk", "m=64 n=64 k=64 h=64", "float32", lowering=TritonKnobs(dot="tf32x3")
    ),
    "linear_rounded": Golden(
        "linear", "mn.k", "m=64 n=64 k=32", "float32", {"k": 100}, lowering=TritonKnobs(dot="tf32")
    ),
    "norm_product_dependent": Golden("norm_product", "mn.k", "m=32 n=64 k=32", dependent=True),
}  # fmt: skip


def source_of(name: str) -> TritonSource:
    golden = GOLDENS[name]
    tiles = {a: int(n) for a, n in (w.split("=") for w in golden.tiles.split())}
    form = chain_of if golden.lowering.groups else chain_named
    chain = form(golden.chain, {**EXTENTS, **golden.extents}, golden.dtype)
    chain = run_time(chain, golden.run_time)
    schedule = scheduled(chain, golden.expression, tiles, golden.split, golden.parts)
    return generate(schedule, name, golden.lowering, golden.dependent)


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, update_golden: bool) -> None:
    """`pytest --update-golden` accepts what changed."""
    path, text = FOLDER / f"{name}.py", source_of(name).text
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(GOLDENS)


@pytest.mark.thorough
def test_tensor_maps_compile() -> None:
    names = [n for n in GOLDENS if n.endswith("_tma")]
    for name, binary in zip(names, compile_all([*map(source_of, names)], "sm_90", 2), strict=True):
        assert isinstance(binary, Binary), f"{name}: {binary}"


@pytest.mark.thorough
def test_every_kernel_that_is_dependent_waits_before_it_touches_memory() -> None:
    names = [n for n, golden in GOLDENS.items() if golden.dependent]
    sources = [source_of(n) for n in names]
    for name, source, binary in zip(names, sources, compile_all(sources, "sm_90", 2), strict=True):
        assert isinstance(binary, Binary), f"{name}: {binary}"
        assert source.dependent
        assert source.text.count("cuda.gdc_wait()\n") == len(source.launches)
        for kernel in source.text.split("cuda.gdc_wait()\n")[:-1]:
            before = kernel.rpartition(f"def {name}")[2]
            assert not re.search(r"\b(load|store|fetch|put|atomic_\w+|warp_specialize)\(", before)


@pytest.mark.thorough
@pytest.mark.parametrize(("arch", "first"), [("sm_80", 0), ("sm_90", 1)])
def test_splits_bounds_and_run_time_extents_compile(arch: str, first: int) -> None:
    """Every second one for each architecture: of each kind, some for either."""
    words = ("split", "run_time", "causal", "local")
    names = [
        n for n, golden in GOLDENS.items()
        if any(w in n for w in words) and not n.endswith("_tma") and not golden.dependent
    ][first::2]  # fmt: skip
    sources = [source_of(n) for n in names]
    for name, source, binary in zip(names, sources, compile_all(sources, arch, 2), strict=True):
        assert isinstance(binary, Binary), f"{name}: {binary}"
        for launch in source.launches:
            assert f".text.{launch.name}\0".encode() in binary.cubin
