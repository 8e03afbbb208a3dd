"""Extents known at run time only: one kernel serves every value."""

from __future__ import annotations

import pytest

from mcfuser.chain import attention, from_json
from mcfuser.codegen.cuda.cubin import compile_source
from mcfuser.codegen.triton import generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.statement import Illegal
from tests.support.triton_agree import agree
from tests.support.triton_cases import chain_named, deep, run_time, scheduled

SIZES = {"b": 3, "m": 50, "n": 70, "k": 33, "h": 24, "g": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("axes", ["m", "n", "b", "k", "mn", "bh", "bmnkh"])
@pytest.mark.parametrize("name", ["attention", "causal", "local", "gemm", "mlp", "masked"])
def test_one_text_serves_every_extent(name: str, axes: str) -> None:
    chain = run_time(chain_named(name, SIZES), axes)
    order = [a for a in "bmhnk" if name not in ("gemm", "attention") or a != "b"]
    schedule = scheduled(chain, deep(chain, order), {**dict.fromkeys("mnkh", 16), "b": 1})
    least = dict.fromkeys(axes, 1)
    most = {a: SIZES[a] for a in axes}
    some = {a: -(-n // 2) for a, n in most.items()}
    mixed = {a: (least, most)[i % 2][a] for i, a in enumerate(axes)}
    values = (least, some, most, mixed)
    texts = {agree(schedule, chain, extents=extents).text for extents in values}
    assert len(texts) == 1


@pytest.mark.parametrize("combine", ["kernel", "last"])
@pytest.mark.parametrize("extent", [1, 16, 17, 40, 70])
def test_parts_follow_the_extent(combine: str, extent: int) -> None:
    chain = run_time(attention(2, 20, 70, 16, 16), "n")
    tiles = {"m": 16, "n": 16, "k": 16, "h": 16}
    schedule = scheduled(chain, "mh.nk", tiles, "n", 3)
    agree(schedule, chain, lowering=TritonKnobs(combine=combine), extents={"n": extent})


@pytest.mark.parametrize("extent", [1, 31, 32])
def test_a_tile_as_large_as_the_bound_is_masked(extent: int) -> None:
    chain = run_time(attention(1, 32, 32, 16, 16), "mn")
    schedule = scheduled(chain, "mh.nk", {"m": 32, "n": 32, "k": 16, "h": 16})
    agree(schedule, chain, extents={"m": extent, "n": extent})


def test_tiles_kept_whole_may_lie_beyond_the_extent() -> None:
    chain = run_time(attention(1, 32, 64, 32, 16), "n")
    schedule = scheduled(chain, "mh.kn", {"m": 16, "n": 16, "k": 16, "h": 16})
    for extent in (1, 40, 64):
        agree(schedule, chain, extents={"n": extent})


def test_the_launcher_counts_blocks_by_extents() -> None:
    chain = run_time(attention(4, 100, 64, 16, 32), "bm")
    source = generate(scheduled(chain, "mh.nk", {"m": 32, "n": 32, "k": 16, "h": 16}), "f")
    (launch,) = source.launches
    assert launch.extents == ("m",), "the outermost iteration needs no count"
    assert launch.grid == (("b", 1), ("m", 32), (32, 16))
    assert launch.blocks({"b": 3, "m": 65}) == (3 * 3 * 2, 1, 1)
    with pytest.raises(KeyError):
        launch.blocks({"b": 3})


def test_only_what_varies_is_an_argument() -> None:
    chain = run_time(attention(2, 64, 64, 16, 16), "n")
    source = generate(scheduled(chain, "mh.nk", {"m": 16, "n": 16, "k": 16, "h": 16}), "f")
    assert "def f(Q_ptr, K_ptr, V_ptr, O_ptr, n_size):" in source.text
    assert "K_ptr + b * (16 * n_size) + k[:, None] + n[None, :] * 16" in source.text


def test_long_tensors_are_counted_in_64_bits() -> None:
    chain = from_json(
        {
            "axes": {"m": 1 << 17, "n": 1 << 15},
            "tensors": {"X": {"shape": ["m", "n"]}},
            "operators": ["Y[m, n] = X[m, n] + 1.0"],
        }
    )
    chain = run_time(chain, "mn")
    source = generate(scheduled(chain, "mn", {"m": 16, "n": 32}), "f")
    assert "n_size = n_size.to(tl.int64)" in source.text
    assert compile_source(source, "sm_80").spills == 0
    agree(scheduled(chain, "mn", {"m": 16, "n": 32}), chain, extents={"m": 20, "n": 50})


def test_single_positions_kept_whole_are_refused() -> None:
    """Beyond the extent there would be no lane to mask."""
    chain = run_time(chain_named("softmax", {"b": 1, "m": 4, "n": 8}), "n")
    schedule = scheduled(chain, "bm.n", {"b": 1, "m": 1, "n": 1})
    with pytest.raises(Illegal, match="single positions of 'n', known at run time only"):
        generate(schedule, "f")
