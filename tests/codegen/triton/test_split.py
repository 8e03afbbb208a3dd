"""Splits as kernels: parts that share, and what combines them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.triton import Launch, Workspace, generate
from mcfuser.expr import rename
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Combine, Illegal, Init, Loop, statements
from tests.support.examples import EXAMPLES, document, small
from tests.support.pairs import paired
from tests.support.triton_agree import agree
from tests.support.triton_cases import chain_named, scheduled

VARIANTS = ("kernel", "last")
SIZES = {"b": 2, "m": 20, "n": 90, "k": 40, "h": 24, "g": 2}
SPLITS = [
    ("attention", "mh.nk", "n"), ("attention", "m.n(k,h)", "n"), ("causal", "mh.nk", "n"),
    ("local", "mh.nk", "n"), ("masked", "mh.nk", "n"), ("grouped", "gmh.nk", "n"),
    ("gemm", "mh.nk", "n"), ("gemm", "m.knh", "k"), ("mlp", "m.n(k,h)", "n"),
    ("linear", "mn.k", "k"), ("norm_product", "mn.k", "k"), ("vector", "n.k", "k"),
]  # fmt: skip


def placed(
    chain: Chain, expression: str, split: str, parts: int, tiles: Mapping[str, int] | None = None
) -> Schedule:
    bound = "b" if chain.name in ("mlp", "masked", "causal", "local", "grouped") else ""
    wanted = {a.name: 16 for a in chain.axes} | {"b": 1, "g": 1, **(tiles or {})}
    axes = {a.name for a in chain.axes}
    return scheduled(chain, bound * ("b" in axes) + expression, wanted, split, parts)


@pytest.mark.thorough
@paired(case=SPLITS, parts=[2, 3, 5], combine=VARIANTS)
def test_parts_are_combined(case: tuple[str, str, str], parts: int, combine: str) -> None:
    name, expression, split = case
    chain = chain_named(name, SIZES)
    schedule = placed(chain, expression, split, parts)
    agree(schedule, chain, lowering=TritonKnobs(combine=combine))


@pytest.mark.parametrize("combine", VARIANTS)
@pytest.mark.parametrize("parts", [2, 5])
def test_what_stands_beside_the_parts_joins_them_once(parts: int, combine: str) -> None:
    """A key beside a cache: its own product comes after the parts of the cache's."""
    path = next(p for p in EXAMPLES if p.stem == "cached_decode_attention")
    chain = small(document(path), SIZES)
    tiles = {"g": 2, "m": 1, "n": 16, "k": 40, "h": 16}
    schedule = scheduled(chain, "bgmh.nk", tiles, "n", parts)
    source = agree(schedule, chain, lowering=TritonKnobs(combine=combine))
    assert source.text.count("load(L_ptr") == 1


@pytest.mark.parametrize("combine", VARIANTS)
@pytest.mark.parametrize("weight", ["exp(S[m, n] - R[m])", "exp(S[m, n] - R[m] - log(Z[m]))"])
def test_what_is_combined_enters_a_product_without_a_mask(weight: str, combine: str) -> None:
    """Past the end of h parts have shared nothing, and what repairs it leaves it nothing."""
    shapes = {"Q": ["m", "k"], "K": ["n", "k"], "V": ["n", "h"], "W": ["h", "i"]}
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        "R[m] = max[n] S[m, n]",
        "Z[m] = sum[n] exp(S[m, n] - R[m])",
        f"P[m, n] = {weight}",
        "U[m, h] = sum[n] P[m, n] * V[n, h]",
        "Y[m, i] = sum[h] U[m, h] * W[h, i]",
    ]
    document = {"axes": {"m": 20, "n": 90, "k": 16, "h": 24, "i": 16}, "operators": lines}
    tensors = {t: {"shape": shape} for t, shape in shapes.items()}
    chain = from_json({**document, "tensors": tensors})
    tiles = {"m": 16, "n": 16, "k": 16, "h": 24, "i": 16}
    schedule = scheduled(chain, "mi.nkh", tiles, "n", 3)
    assert any(isinstance(s, Combine) and s.repairs for s, _ in statements(schedule.body))
    text = agree(schedule, chain, lowering=TritonKnobs(combine=combine)).text
    assert "tl.where(h_in" not in text


@pytest.mark.parametrize("combine", VARIANTS)
def test_parts_without_iterations_change_nothing(combine: str) -> None:
    """Five parts of two iterations each, of six iterations: the last two have none."""
    chain = chain_named("causal", {**SIZES, "n": 90})
    schedule = placed(chain, "mh.nk", "n", 5)
    assert (schedule.trips("n"), schedule.span("n")) == (6, 2)
    agree(schedule, chain, lowering=TritonKnobs(combine=combine))


def test_many_parts_are_combined_in_a_loop() -> None:
    chain = gemm(1, 16, 16, 640, 16)
    schedule = scheduled(chain, "m.knh", {"m": 16, "n": 16, "k": 16, "h": 16}, "k", 20)
    assert "for peer in range(20):" in agree(schedule, chain).text


def test_even_parts_end_where_they_end() -> None:
    chain = attention(1, 16, 128, 16, 16)
    source = agree(placed(chain, "mh.nk", "n", 4), chain)
    assert "for n_start in range(n_first, n_first + 32, 16):" in source.text


# --- how they are launched


def test_two_kernels_take_what_they_use() -> None:
    chain = attention(3, 40, 96, 16, 32, "float16")
    source = generate(placed(chain, "mh.nk", "n", 3), "f")
    shared = ("R_parts", "Z_parts", "U_parts")
    grid = ((3, 1), (40, 16), (32, 16))
    assert source.launches == (
        Launch("f", ("Q", "K", "V", *shared), (), grid, 3),
        Launch("f_combine", ("O", *shared), (), grid),
    )
    assert [launch.blocks({}) for launch in source.launches] == [(18, 3, 1), (18, 1, 1)]
    sizes = [3 * 3 * 40, 3 * 3 * 40, 3 * 3 * 40 * 32]
    assert source.workspace == tuple(
        Workspace(name, "float32", size) for name, size in zip(shared, sizes, strict=True)
    )
    assert source.parameters == ("Q", "K", "V", "O")


def test_one_kernel_counts_the_parts_that_have_ended() -> None:
    chain = attention(3, 40, 96, 16, 32, "float16")
    source = generate(placed(chain, "mh.nk", "n", 3), "f", TritonKnobs(combine="last"))
    (launch,) = source.launches
    assert launch.arguments == ("Q", "K", "V", "O", "R_parts", "Z_parts", "U_parts", "ended")
    assert source.workspace[-1] == Workspace("ended", "int32", 18, zero=True)


def test_workspaces_are_named_apart_from_tensors() -> None:
    chain = chain_named("vector", SIZES)
    names, same = {"a": "C_parts", "B": "ended"}, {a: a for a in SIZES}
    renamed = Chain(
        chain.name, chain.axes,
        tuple(replace(t, name=names.get(t.name, t.name)) for t in chain.tensors),
        tuple(replace(o, body=rename(o.body, names, same)) for o in chain.operators),
        chain.outputs,
    )  # fmt: skip
    schedule = placed(renamed, "n.k", "k", 2)
    source = agree(schedule, renamed, lowering=TritonKnobs(combine="last"))
    assert [w.name for w in source.workspace] == ["C_parts_", "ended_"]


def test_what_stands_before_the_parts_is_refused() -> None:
    chain = attention(1, 16, 64, 16, 16)
    schedule = placed(chain, "mh.nk", "n", 2)
    schedule = replace(schedule, body=_with_init(schedule.body))
    for combine in VARIANTS:
        with pytest.raises(Illegal, match="a statement stands before the loop over parts"):
            generate(schedule, "f", TritonKnobs(combine=combine))


def _with_init(body):
    if isinstance(body[0], Loop) and body[0].kind == "grid":
        return (replace(body[0], body=_with_init(body[0].body)),)
    return (Init("U", 0.0), *body)


# --- what the last block sees


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_last_block_loads_what_the_others_have_stored(arch: str, tmp_path: Path) -> None:
    """In the machine's code: every thread's stores, a barrier, the fence and the count of one
    thread, a barrier, and loads that pass by the first level of cache."""
    chain = attention(2, 16, 256, 32, 32, "float16")
    source = generate(placed(chain, "mh.nk", "n", 4), "f", TritonKnobs(combine="last"))
    code = " ".join(_instructions(compile_source(source, arch).cubin, tmp_path))
    before, count, after = code.partition("ATOM")
    assert count
    assert re.search(r"STG\S* BAR\.SYNC\S* (BAR\.SYNC\S* )*MEMBAR\S*GPU $", before)
    assert re.search(r"^\S+ (CCTL\.IVALL )?BAR\.SYNC", after)
    loads = re.findall(r"LDG\S*", after)
    assert loads
    assert all("STRONG.GPU" in load for load in loads)


def _instructions(cubin: bytes, folder: Path) -> list[str]:
    """The instructions that touch memory or wait, in the order in which they stand."""
    from triton import knobs

    path = folder / "f.cubin"
    path.write_bytes(cubin)
    command = [knobs.nvidia.cuobjdump.path, "-sass", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)", told, re.MULTILINE)
    return [n for n in names if re.match(r"STG|BAR|MEMBAR|ATOMG?|CCTL|LDG", n)]
