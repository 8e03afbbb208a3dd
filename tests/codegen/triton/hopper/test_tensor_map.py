"""Operands that come through tensor maps: which can, how they are described, what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, Tensor
from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.triton import TensorMap, TritonSource, generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.expr import Read, parse
from mcfuser.lowering.triton.hopper.feasible import mapped
from mcfuser.lowering.triton.hopper.tensor_map import mappable, tensor_map
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.prune import distinct, parted, prune, space
from mcfuser.space.statement import Illegal
from tests.support.chains import chain
from tests.support.gpu_candidates import every, settings
from tests.support.triton_agree import agree
from tests.support.triton_cases import chain_named, run_time, scheduled

MAPS = TritonKnobs(tma=True)
SMALL = {"b": 2, "g": 2, "m": 64, "n": 96, "k": 32, "h": 32}
TILES = {"b": 1, "g": 2, "m": 32, "n": 16, "k": 32, "h": 16}


def lying(chain: Chain, **places: tuple[tuple[int, ...], int]) -> Chain:
    """The chain where some inputs have these strides and offsets."""
    tensors = [
        replace(t, strides=places[t.name][0], offset=places[t.name][1]) if t.name in places else t
        for t in chain.tensors
    ]
    return replace(chain, tensors=tuple(tensors))


def written(chain: Chain, expression: str, tiles: Mapping[str, int]) -> TritonSource:
    return generate(scheduled(chain, expression, tiles), "kernel", MAPS)


def maps_of(source: TritonSource) -> dict[str, TensorMap]:
    return {m.tensor: m for launch in source.launches for m in launch.maps}


# --- what they compute ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["gemm", "attention", "causal", "grouped", "mlp"])
def test_chains_agree(name: str, dtype: str) -> None:
    chain = chain_named(name, SMALL, dtype)
    expression = {"grouped": "gmh.nk", "mlp": "bmh.nk"}.get(name, "mh.nk")
    source = agree(scheduled(chain, expression, TILES), chain, lowering=MAPS)
    packed = {"Q"} if name == "grouped" else set()  # rows of several heads are no matrix
    assert len(maps_of(source)) == 3 - len(packed) and not packed & set(maps_of(source))


def test_outside_the_tensor_there_are_zeros() -> None:
    extents = {**SMALL, "m": 40, "n": 72, "h": 24}
    chain = chain_named("gemm", extents, "float16")
    source = agree(scheduled(chain, "mh.nk", {**TILES, "n": 32}), chain, lowering=MAPS)
    assert set(maps_of(source)) == {"A", "B", "D"}
    assert "mask" in source.text, "what is stored is masked as before"
    loads = [line for line in source.text.splitlines() if "_map.load" in line]
    assert len(loads) == 3 and not any("mask" in line for line in loads)


def test_a_tile_with_all_of_an_axis_may_be_padded() -> None:
    """What lies past its end is past the tensor's."""
    chain = chain_named("attention", {**SMALL, "m": 50, "n": 77, "k": 24, "h": 40}, "float16")
    tiles = {"b": 1, "m": 32, "n": 32, "k": 24, "h": 40}
    found = maps_of(agree(scheduled(chain, "mh.nk", tiles), chain, lowering=MAPS))
    assert {n: (m.shape[1:], m.box[1:]) for n, m in found.items()} == {
        "Q": ((50, 24), (32, 32)), "K": ((77, 24), (32, 32)), "V": ((77, 40), (32, 64)),
    }  # fmt: skip
    assert compile_source(written(chain, "mh.nk", tiles), "sm_90").cubin


@pytest.mark.parametrize("combine", ["kernel", "last"])
def test_parts_agree(combine: str) -> None:
    chain = chain_named("attention", SMALL, "float16")
    schedule = scheduled(chain, "mh.nk", TILES, "n", 4)
    source = agree(schedule, chain, lowering=replace(MAPS, combine=combine))
    assert all(set(one.arguments).isdisjoint({"Q", "K", "V"}) for one in source.launches)


def test_iterations_that_are_written_out_agree() -> None:
    chain = chain_named("attention", SMALL, "float16")
    source = agree(scheduled(chain, "m.n(k,h)", {**TILES, "k": 16}), chain, lowering=MAPS)
    assert "V_map.load([b, n_start, 16])" in source.text


def test_a_view_is_described_as_it_lies() -> None:
    """Heads split from one projection, K transposed: b n (3 h k), and b k n."""
    chain = chain_named("attention", SMALL, "float16")
    row = 3 * 32
    viewed = lying(
        chain, Q=((64 * row, row, 1), 0), K=((96 * 32, 1, 96), 0), V=((96 * row, row, 1), 64)
    )
    found = maps_of(agree(scheduled(viewed, "mh.nk", TILES), viewed, lowering=MAPS))
    assert found["Q"] == TensorMap("Q", "float16", (2, 64, 32), (6144, 96, 1), (1, 32, 32))
    assert found["K"] == TensorMap("K", "float16", (2, 32, 96), (3072, 96, 1), (1, 32, 16))
    assert found["V"] == TensorMap("V", "float16", (2, 96, 32), (9216, 96, 1), (1, 16, 16), 64)


def test_where_an_index_is_a_number_a_tile_has_one_position() -> None:
    c = chain({"m": 64, "n": 16, "k": 32}, {"A": (3, "m", "k"), "B": "kn"},
              ["C[m, n] = sum[k] A[1, m, k] * B[k, n]"])  # fmt: skip
    read = parse("A[1, m, k]")
    assert isinstance(read, Read)
    found = tensor_map(c, read, {"m": 32, "k": 16}.__getitem__)
    assert found == TensorMap("A", "float32", (3, 64, 32), (2048, 32, 1), (1, 32, 16))


# --- which can --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiles", "fits"),
    [({"m": 4, "k": 8}, True), ({"m": 8, "k": 4}, False), ({"m": 1, "k": 8}, False)],
    ids=["rows of 16 bytes", "rows of 8 bytes", "one row"],
)  # fmt: skip
def test_a_tile_is_a_matrix_of_rows_of_16_bytes(tiles: Mapping[str, int], fits: bool) -> None:
    c = chain_named("gemm", {"b": 1, "m": 64, "n": 64, "k": 64, "h": 64}, "float16")
    read = parse("A[b, m, k]")
    assert isinstance(read, Read)
    tile = {**tiles, "b": 1}.__getitem__
    assert bool(mappable(c, read, tile, tile)) == fits


def test_what_cannot_keeps_its_pointer() -> None:
    chain = chain_named("gemm", SMALL, "float16")
    viewed = lying(chain, B=((96 * 40, 100, 1), 0))  # rows of 200 bytes, no multiple of 16
    source = agree(scheduled(viewed, "mh.nk", TILES), viewed, lowering=MAPS)
    assert set(maps_of(source)) == {"A", "D"}
    assert source.launches[0].arguments == ("B", "E")
    assert "def kernel(B_ptr, E_ptr, A_map, D_map):" in source.text


@pytest.mark.parametrize(
    ("change", "tiles"),
    [
        (lambda c: run_time(c, "bmnk"), {}),
        (lambda c: c, {"m": 24, "n": 24, "k": 24}),
        (lambda c: c, {"m": 8, "n": 8, "k": 8, "h": 8}),
        (lambda c: lying(c, A=((2048, 32, 1), 1), B=((3072, 96, 1), 3), D=((3072, 32, 1), 5)), {}),
        (lambda c: lying(c, A=((2048, 1, 68), 0), B=((3072, 97, 1), 0), D=((1, 64, 2), 0)), {}),
        (lambda c: replace(c, tensors=tuple(map(_int, c.tensors))), {}),
    ],
    ids=["run time", "padded tiles", "padded products", "offsets", "strides", "dtypes"],
)
def test_no_load_at_all_is_refused(change, tiles: Mapping[str, int]) -> None:
    chain = change(chain_named("gemm", SMALL, "float16"))
    with pytest.raises(Illegal, match="no operand of a product can be loaded through a tensor map"):
        written(chain, "mh.nk", {**TILES, **tiles})


def _int(t: Tensor) -> Tensor:
    return replace(t, dtype="int32") if t.name in "ABD" else t


def test_rows_that_pad_one_position_keep_their_pointer() -> None:
    """A map has no dimension of extent one, so none that could be padded."""
    chain = chain_named("grouped", {**SMALL, "g": 4, "m": 1}, "float16")
    source = agree(scheduled(chain, "gmh.nk", {**TILES, "g": 4, "m": 1}), chain, lowering=MAPS)
    assert set(maps_of(source)) == {"K", "V"}


def test_vectors_keep_their_pointers() -> None:
    chain = chain_named("attention", {**SMALL, "m": 1}, "float16")
    source = written(chain, "mh.nk", {**TILES, "m": 1})
    assert set(maps_of(source)) == {"K", "V"}


# --- how they are described -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "box", "swizzle", "part"),
    [
        ("float16", (64, 128), 128, (64, 64)),
        ("float16", (1, 64, 64), 128, (1, 64, 64)),
        ("bfloat16", (128, 32), 64, (128, 32)),
        ("float32", (16, 8), 32, (16, 8)),
        ("float32", (16, 4), 0, (16, 4)),
        ("float16", (4, 64), 0, (4, 64)),
        ("float16", (4, 512), 0, (4, 256)),
        ("float16", (1, 512, 32), 64, (1, 256, 32)),
    ],
)
def test_the_swizzle_is_as_wide_as_a_row(dtype, box, swizzle, part) -> None:
    m = TensorMap("A", dtype, (1024,) * len(box), (1,) * len(box), box)
    assert (m.swizzle, m.part) == (swizzle, part)


@pytest.mark.thorough
@pytest.mark.parametrize("k", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_triton_lays_tiles_out_as_described(dtype: str, k: int) -> None:
    """The compiler compares what Triton has compiled in, and raises Illegal where it differs."""
    chain = chain_named("linear", {"m": 512, "n": 256, "k": 256}, dtype)
    rows_of_boxes = [{"m": 512, "n": 16}] if k == 16 else []  # deeper ones take seconds
    large = (
        [{"m": 64, "n": 128}] if dtype != "float32" else [{"m": 64, "n": 16}, {"m": 16, "n": 128}]
    )
    for tiles in (*large, {"m": 16, "n": 16}, *rows_of_boxes):
        source = written(chain, "mn.k", {**tiles, "k": k})
        binary = compile_source(source, "sm_90")
        assert b"kernel" in binary.cubin
        first, *rest = source.launches[0].maps
        other = replace(first, box=(first.box[0], 2 * first.box[1]))
        launch = replace(source.launches[0], maps=(other, *rest))
        with pytest.raises(Illegal, match="Triton"):
            compile_source(replace(source, launches=(launch,)), "sm_90")


# --- as part of a candidate -------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gemm", "attention", "grouped", "mlp"])
def test_candidates_have_maps_where_some_load_can(name: str) -> None:
    device = CATALOGUE["nvidia/h200"]
    extents = {"b": 2, "g": 4, "m": 1 if name == "grouped" else 96, "n": 160, "k": 48, "h": 96}
    chain = chain_named(name, extents, "float16")
    whole = every(parted(distinct(prune(space(chain), device)[0]), device), device)
    alike = np.flatnonzero(settings(whole, "dot") == "ieee")
    rows = np.random.default_rng(0).permutation(alike)[:60]
    seen = set()
    for candidate in map(whole.candidate, rows):
        plan, tiles = whole.plan(candidate)
        can = bool(mapped(plan, np.asarray([[tiles[a] for a in plan.axes]]))[0])
        try:
            generate(plan.schedule(tiles), "kernel", replace(whole.settings(candidate), tma=True))
            legal = True
        except Illegal as illegal:
            assert "tensor map" in str(illegal)
            legal = False
        assert can == legal, f"{plan.expression} {tiles}"
        assert can or not whole.settings(candidate).tma
        seen.add(can)
    assert seen == {True, False}


def test_only_a_device_that_has_a_copy_engine_gets_maps() -> None:
    chain = chain_named("gemm", {"b": 1, "m": 512, "n": 256, "k": 64, "h": 64}, "float16")
    for name, has in (("nvidia/a100", False), ("nvidia/l4", False), ("nvidia/h100", True)):
        device = CATALOGUE[name]
        found = every(parted(distinct(prune(space(chain), device)[0]), device), device)
        assert settings(found, "tma").any() == has
