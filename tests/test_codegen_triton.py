"""Generated Triton kernels compute what their chain means; they read as they did."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_triton import DTYPES, run
from triton_cases import LINES, chain_named, scheduled

from mcfuser.chain import Bounds, Chain, attention, from_json, gemm
from mcfuser.codegen.triton import Lowering, Source, generate
from mcfuser.codegen.triton.layout import reach
from mcfuser.expr import parse as parse_expr
from mcfuser.space.expression import bind, bindable, tilings
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Illegal, Loop, Schedule

GOLDEN = Path(__file__).parent / "golden" / "triton"
EXTENTS = {"b": 12, "m": 512, "n": 256, "k": 64, "h": 64}
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def memory_of(plain: Chain, source: Source, seed: int) -> dict[str, np.ndarray]:
    """A flat array for each parameter: inputs random, outputs poisoned."""
    rng = np.random.default_rng(seed)
    memory = {}
    for name in source.parameters:
        tensor = plain.tensor(name)
        size = reach(tensor, plain.shape(name)) + 1
        values = rng.standard_normal(size) if name in plain.inputs else np.full(size, np.nan)
        memory[name] = values.astype(DTYPES[tensor.dtype])
    return memory


def agree(schedule: Schedule, plain: Chain, seed: int = 0) -> None:
    """The kernel, run block by block, gives what the chain means in float64."""
    source = generate(schedule, "kernel")
    memory = memory_of(plain, source, seed)
    inputs = {n: logical(plain, n, memory[n]) for n in plain.inputs}
    expected = evaluate(plain, inputs)
    run(source, memory)
    for name in plain.outputs:
        found = np.asarray(logical(plain, name, memory[name]), np.float64)
        error = np.linalg.norm(found - expected[name]) / np.linalg.norm(expected[name])
        assert error < TOLERANCE[plain.tensor(name).dtype], f"{name}\n{source.text}"


def sizes(words: str) -> dict[str, int]:
    return {a: int(n) for a, n in (w.split("=") for w in words.split())}


SMALL = {"b": 2, "m": 32, "n": 64, "k": 32, "h": 32, "g": 4}


@pytest.mark.parametrize("name", ["gemm", "attention"])
@pytest.mark.parametrize(
    "expression", ["mh.nk", "mh.kn", "m.n(k,h)", "m.nkh", "m.knh", "m.hnk", "mnkh", "m.nhk"]
)
@pytest.mark.parametrize(
    "tiles",
    [
        {"m": 16, "n": 16, "k": 16, "h": 16},
        {"m": 32, "n": 32, "k": 32, "h": 32},
        {"m": 16, "n": 48, "k": 32, "h": 16},
    ],
)
def test_expressions_and_tiles(name: str, expression: str, tiles: Mapping[str, int]) -> None:
    chain = chain_named(name, SMALL)
    agree(scheduled(chain, expression, tiles), chain)


RAGGED = {"b": 1, "m": 77, "n": 80, "k": 40, "h": 24, "g": 3}


@pytest.mark.parametrize("name", ["gemm", "attention", *LINES])
@pytest.mark.parametrize("extents", [SMALL, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize("tile", [16, 48, 128])
def test_every_chain(name: str, extents: Mapping[str, int], tile: int) -> None:
    chain = chain_named(name, extents)
    free = [a for a in "bgmnkh" if a in {x.name for x in chain.axes}]
    expression = bind(chain, tilings_of(chain, free))
    agree(scheduled(chain, expression, dict.fromkeys(free, tile)), chain)


def tilings_of(chain: Chain, order: list[str]):
    """The deep expression with the loops in that order."""
    return next(
        e for e in tilings(chain) if e.deep and list(e.axes) == [a for a in order if a in e.axes]
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from(["gemm", *sorted(LINES)]),
    st.fixed_dictionaries({a: st.integers(1, 40 if a not in "bg" else 2) for a in "bgmnkh"}),
    st.fixed_dictionaries({a: st.integers(1, 40) for a in "bgmnkh"}),
    st.integers(0, 10**6),
)
def test_any_schedule(name: str, extents: dict[str, int], tiles: dict[str, int], pick: int) -> None:
    chain = chain_named(name, extents)
    every = tilings(chain)
    schedule = scheduled(chain, bind(chain, every[pick % len(every)]), tiles)
    try:
        agree(schedule, chain, pick)
    except Illegal as illegal:
        assert "register file" in str(illegal) or "elements" in str(illegal)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gemm", "attention", "mlp", "masked", "softmax", "layernorm"])
def test_half_precision(name: str, dtype: str) -> None:
    extents = {"b": 2, "m": 32, "n": 96, "k": 32, "h": 32}
    chain = chain_named(name, extents, dtype)
    tiles = {"b": 1, "m": 16, "n": 48, "k": 16, "h": 32}
    order = [a for a in "bmhnk" if a in {x.name for x in chain.axes}]
    schedule = scheduled(chain, bind(chain, tilings_of(chain, order)), tiles)
    agree(schedule, chain)
    assert "float64" not in generate(schedule, "kernel").text


def test_a_decode_step_pads_its_single_row() -> None:
    chain = attention(4, 1, 77, 32, 32)
    schedule = scheduled(chain, "mh.nk", {"m": 1, "n": 32, "k": 32, "h": 32})
    agree(schedule, chain)
    assert "m = tl.arange(0, 16)" in generate(schedule, "kernel").text


def test_inputs_and_outputs_lie_as_their_strides_say() -> None:
    """Heads side by side in one packed projection, as a graph without copies has them."""
    chain = attention(3, 40, 40, 16, 16)
    rows = 3 * 3 * 16
    packed = {"Q": 0, "K": 48, "V": 96}
    lies = {n: {"strides": (16, rows, 1), "offset": at} for n, at in packed.items()}
    lies["O"] = {"strides": (16, 48, 1), "offset": 5}
    strided = replace(
        chain, tensors=tuple(replace(t, **lies.get(t.name, {})) for t in chain.tensors)
    )
    schedule = scheduled(strided, "mh.nk", {"m": 16, "n": 32, "k": 16, "h": 16})
    agree(schedule, strided)


def test_a_broadcast_dimension_is_loaded_once() -> None:
    chain = chain_named("masked", SMALL)
    tensors = tuple(replace(t, strides=(0, 1)) if t.name == "M" else t for t in chain.tensors)
    broadcast = replace(chain, tensors=tensors)
    schedule = scheduled(broadcast, "mh.nk", {"m": 16, "n": 32, "k": 32, "h": 32})
    agree(schedule, broadcast)
    assert "M_ptr + n)" in generate(schedule, "kernel").text


def test_affine_indices() -> None:
    """A convolution's window: a tile's addresses overlap, its values do not mix."""
    chain = from_json(
        {
            "name": "window",
            "axes": {"m": 50, "k": 5, "n": 20},
            "tensors": {"X": {"shape": [104, 20]}, "W": {"shape": ["k", "n"]}},
            "operators": ["Y[m, n] = sum[k] X[2*m + k + 1, n] * W[k, n]"],
        }
    )
    agree(scheduled(chain, "mn.k", {"m": 16, "n": 16, "k": 3}), chain)


def test_loop_bounds_cut_the_turns_outside_the_domain() -> None:
    chain = chain_named("causal", {**SMALL, "m": 64})
    schedule = scheduled(chain, "mh.nk", {"m": 16, "n": 16, "k": 32, "h": 32})
    bounded = replace(schedule, body=_bounded(schedule.body, "n", "floor((m + 15) / 16) + 1"))
    text = generate(bounded, "kernel").text
    assert "range(0, tl.minimum(((m_start + 15) // 16 + 1) * 16, 64), 16)" in text
    agree(bounded, chain)


def _bounded(body, axis: str, last: str):
    return tuple(
        replace(
            s,
            body=_bounded(s.body, axis, last),
            hi=parse_expr(last) if s.axis == axis else None,
        )
        if isinstance(s, Loop)
        else s
        for s in body
    )


INTERPRETED = """
import sys
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from kernel import kernel
arrays = np.load(sys.argv[1] + "/arrays.npz")
tensors = [torch.from_numpy(arrays[f"arr_{i}"]) for i in range(len(arrays))]
kernel[(int(sys.argv[2]),)](*tensors)
np.save(sys.argv[1] + "/found.npy", tensors[-1].numpy())
"""


@pytest.mark.parametrize("name", ["attention", "gemm", "causal", "mlp", "layernorm"])
def test_tritons_own_interpreter_agrees_with_the_stand_in(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="Triton's interpreter needs torch")
    chain = chain_named(name, RAGGED)
    order = [a for a in "bgmnkh" if a in {x.name for x in chain.axes}]
    expression = bind(chain, tilings_of(chain, order))
    source = generate(scheduled(chain, expression, dict.fromkeys(order, 48)), "kernel")
    memory = memory_of(chain, source, 0)
    np.savez(tmp_path / "arrays.npz", *memory.values())
    (tmp_path / "kernel.py").write_text(source.text)
    subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(tmp_path), str(source.grid[0])],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    run(source, memory)
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(found, memory[source.parameters[-1]], rtol=1e-4, atol=1e-5)


# --- what it looks like


def test_masks_stand_only_where_padding_needs_them() -> None:
    even = generate(scheduled(gemm(1, 64, 64, 32, 32), "mh.nk", sizes("m=16 n=32 k=32 h=32")), "f")
    assert "mask" not in even.text
    assert "where" not in even.text
    ragged = scheduled(gemm(1, 77, 64, 32, 32), "mh.nk", {"m": 16, "n": 32, "k": 32, "h": 32})
    lines = [line for line in generate(ragged, "f").text.splitlines() if "_in" in line]
    assert all("m_in" in line for line in lines)
    padded = scheduled(gemm(1, 64, 80, 32, 32), "mh.nk", {"m": 16, "n": 32, "k": 32, "h": 32})
    assert "tl.where" not in generate(padded, "f").text, "C is zero where B was masked"


def test_what_does_not_vary_along_an_axis_is_not_zero_outside_it() -> None:
    """The mean is a sum of what is zero outside; a deviation from it is not."""
    chain = chain_named("layernorm", {"m": 32, "n": 200})
    agree(scheduled(chain, "m.n", {"m": 16, "n": 48}), chain)


def test_an_operand_is_loaded_in_the_order_of_its_product() -> None:
    text = generate(
        scheduled(attention(2, 64, 64, 32, 32), "mh.nk", sizes("m=16 n=16 k=32 h=32")), "f"
    ).text
    assert "trans" not in text
    assert "k[:, None] + n[None, :] * 32" in text


def test_names_never_collide() -> None:
    chain = from_json(
        {
            "axes": {"m": 32, "n": 32},
            "tensors": {
                name: {"shape": ["m", "n"]}
                for name in ("m", "m_in", "tl", "pid", "triton", "n_start", "Y_0", "LOWEST")
            },
            "operators": [
                "Y[m, n] = m[m, n] + m_in[m, n] + tl[m, n] + pid[m, n] + triton[m, n]"
                " + n_start[m, n] + Y_0[m, n] + LOWEST[m, n]"
            ],
        }
    )
    agree(scheduled(chain, "mn", {"m": 16, "n": 16}), chain)


def test_lines_are_no_longer_than_a_page() -> None:
    for name in ("gemm", "attention", *LINES):
        chain = chain_named(name, RAGGED)
        order = [a for a in "bgmnkh" if a in {x.name for x in chain.axes}]
        expression = bind(chain, tilings_of(chain, order))
        text = generate(scheduled(chain, expression, dict.fromkeys(order, 48)), "kernel").text
        assert max(map(len, text.splitlines())) <= 100


def test_the_source_says_how_to_launch_it() -> None:
    schedule = scheduled(
        attention(3, 64, 64, 32, 32, "float16"), "mh.nk", sizes("m=16 n=16 k=32 h=16")
    )
    source = generate(schedule, "kernel", Lowering(warps=8, stages=3))
    assert source.grid == (3 * 4 * 2, 1, 1)
    assert source.parameters == ("Q", "K", "V", "O")
    assert source.dtypes == ("float16",) * 4
    assert (source.warps, source.stages) == (8, 3)


GOLDENS = {
    "attention_deep": ("attention", "mh.nk", sizes("m=64 n=64 k=64 h=64"), "float16", {}),
    "attention_whole_scores": ("attention", "mh.kn", sizes("m=64 n=128 k=32 h=64"), "float16", {}),
    "attention_flat": ("attention", "m.n(k,h)", sizes("m=64 n=64 k=32 h=32"), "float16", {}),
    "attention_decode": (
        "attention", "mh.nk", sizes("m=1 n=48 k=64 h=64"), "float32", sizes("m=1 n=77"),
    ),
    "attention_causal": ("causal", "mh.nk", sizes("m=64 n=32 k=64 h=64"), "float32", {}),
    "attention_masked": (
        "masked", "mh.nk", sizes("m=32 n=32 k=64 h=64"), "float32", sizes("n=200"),
    ),
    "gemm_deep": ("gemm", "mh.nk", sizes("m=64 n=64 k=32 h=64"), "float16", {}),
    "gemm_padded": ("gemm", "mh.nk", sizes("m=48 n=96 k=64 h=64"), "float16", sizes("m=500")),
    "gemm_flat": ("gemm", "m.n(k,h)", sizes("m=64 n=64 k=64 h=32"), "float16", {}),
    "mlp": ("mlp", "bm.n(k,h)", sizes("b=1 m=32 n=64 k=64 h=64"), "float16", {}),
    "linear": ("linear", "mn.k", sizes("m=64 n=64 k=32"), "float32", {}),
    "layernorm": ("layernorm", "m.n", sizes("m=4 n=96"), "float32", sizes("n=96")),
    "softmax": ("softmax", "bm.n", sizes("b=1 m=1 n=128"), "float16", {}),
    "norm_product": ("norm_product", "mn.k", sizes("m=32 n=64 k=32"), "float16", {}),
}  # fmt: skip


@pytest.mark.parametrize("golden", GOLDENS)
def test_golden(golden: str, update_golden: bool) -> None:
    """`pytest --update-golden` accepts what changed."""
    path = GOLDEN / f"{golden}.py"
    if update_golden:
        path.write_text(golden_text(golden))
    assert path.read_text() == golden_text(golden)


def golden_text(golden: str) -> str:
    name, expression, tiles, dtype, extents = GOLDENS[golden]
    chain = chain_named(name, {**EXTENTS, **extents}, dtype)
    return generate(scheduled(chain, expression, tiles), golden).text


# --- what is refused


def test_an_extent_known_at_run_time_only_is_refused() -> None:
    chain = chain_named("linear", SMALL)
    schedule = scheduled(chain, "mn.k", {"m": 16, "n": 16, "k": 32})
    axes = tuple(replace(a, extent=Bounds(1, 32)) if a.name == "m" else a for a in chain.axes)
    with pytest.raises(Illegal, match="axis 'm' has an extent that is known at run time only"):
        generate(replace(schedule, chain=replace(schedule.chain, axes=axes)), "f")


def test_more_tiles_than_registers_hold_are_refused() -> None:
    schedule = scheduled(gemm(1, 64, 4096, 64, 64), "mh.kn", sizes("m=16 n=16 k=32 h=16"))
    with pytest.raises(Illegal, match="256 tiles along n fit no register file"):
        generate(schedule, "f")


def test_a_tile_beyond_triton_is_refused() -> None:
    schedule = scheduled(gemm(1, 2048, 1024, 64, 64), "mh.nk", sizes("m=2048 n=1024 k=32 h=16"))
    with pytest.raises(Illegal, match="tile 'C' has more than 1048576 elements"):
        generate(schedule, "f")


def test_statements_beside_the_grid_are_refused() -> None:
    chain = gemm(1, 64, 64, 64, 64)
    assert "n" not in bindable(chain)
    schedule = scheduled(chain, "n.mkh", {"m": 16, "n": 16, "k": 32, "h": 32})
    with pytest.raises(Illegal, match="beside the loops that form the grid"):
        generate(schedule, "f")
