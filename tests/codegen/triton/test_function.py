"""Generated Triton kernels compute what their chain means; they read as they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import Chain, Digit, attention, from_json, gemm
from mcfuser.codegen.triton import generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.expression import bind, bindable, tilings
from mcfuser.space.statement import Illegal
from tests.support.chains import renamed
from tests.support.triton_agree import agree
from tests.support.triton_cases import LINES, chain_named, deep, scheduled


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


def test_a_tensor_may_be_called_as_a_tile_of_another() -> None:
    """A tile that is kept is numbered: E_0, E_1."""
    chain = renamed(chain_named("gemm", SMALL), {}, {"A": "E_0", "B": "C_at"})
    source = agree(scheduled(chain, "m.n(k,h)", {"m": 16, "n": 16, "k": 16, "h": 16}), chain)
    assert "E_0 = " in source.text and "E_0_ = " in source.text


RAGGED = {"b": 1, "m": 77, "n": 80, "k": 40, "h": 24, "g": 3}


@pytest.mark.parametrize("name", ["gemm", "attention", *LINES])
@pytest.mark.parametrize("extents", [SMALL, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize("tile", [16, 48, 128])
def test_every_chain(name: str, extents: Mapping[str, int], tile: int) -> None:
    chain = chain_named(name, extents)
    free = [a for a in "bgmnkh" if a in {x.name for x in chain.axes}]
    expression = deep(chain, free)
    agree(scheduled(chain, expression, dict.fromkeys(free, tile)), chain)


@settings(max_examples=100, deadline=None, derandomize=True)
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
    schedule = scheduled(chain, deep(chain, order), tiles)
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


@pytest.mark.parametrize("rows", [10, 16])
def test_rows_are_written_in_runs_that_lie_apart(rows: int) -> None:
    """As into a concatenation along the rows of several matrices."""
    chain = from_json({
        "axes": {"m": 3 * rows, "n": 40, "k": 32},
        "tensors": {"A": {"shape": ["m", "k"], "dtype": "float16"},
                    "B": {"shape": ["k", "n"], "dtype": "float16"},
                    "E": {"shape": ["m", "n"], "dtype": "float16"}},
        "operators": ["E[m, n] = sum[k] A[m, k] * B[k, n]"],
    })  # fmt: skip
    runs = (Digit(3, 40 * (rows + 6)), Digit(rows, 40))
    laid = replace(chain.tensor("E"), strides=(runs, 1), offset=6 * 40)
    chain = replace(chain, tensors=tuple(laid if t.name == "E" else t for t in chain.tensors))
    agree(scheduled(chain, "mn.k", {"m": 16, "n": 32, "k": 32}), chain)


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


def test_loops_take_the_iterations_that_the_domain_admits() -> None:
    chain = chain_named("causal", {**SMALL, "m": 64})
    schedule = scheduled(chain, "mh.nk", {"m": 16, "n": 16, "k": 32, "h": 32})
    source = agree(schedule, chain)
    assert "for n_start in range(0, tl.minimum(m_start + 16, 64), 16):" in source.text


def test_a_window_starts_where_a_tile_does() -> None:
    chain = chain_named("local", {**SMALL, "m": 90, "n": 90})
    schedule = scheduled(chain, "mh.nk", {"m": 16, "n": 24, "k": 32, "h": 32})
    source = agree(schedule, chain)
    first = "tl.maximum(m_start - 20, 0) // 24 * 24"
    assert f"for n_start in range({first}, tl.minimum(m_start + 16, 90), 24):" in source.text


def test_iterations_that_are_written_out_are_guarded() -> None:
    """With n whole, the scores of every tile stay in registers; those above the diagonal go."""
    chain = chain_named("causal", {**SMALL, "m": 64})
    schedule = scheduled(chain, "mh.kn", {"m": 16, "n": 16, "k": 16, "h": 32})
    text = agree(schedule, chain).text
    guards = [line.strip() for line in text.splitlines() if " if " in line]
    assert guards == [f"if {n} <= m_start + 15:" for n in (16, 32, 48)]


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


def test_a_product_with_what_is_infinite_outside_is_not_zero_there() -> None:
    """The lanes past the end hold zeros, and 0 * log(0) is no number."""
    shapes = {t: {"shape": ["m", "n"]} for t in "XY"}
    lines = ["T[m] = sum[n] X[m, n] * log(abs(Y[m, n]))"]
    chain = from_json({"axes": {"m": 20, "n": 80}, "tensors": shapes, "operators": lines})
    agree(scheduled(chain, "m.n", {"m": 16, "n": 48}), chain)


def softmax_of(domain: str, extents: Mapping[str, int], scores: str = "S[m, n] * 0.3") -> Chain:
    """The sum of a softmax's weights and their scores, over what is in a domain."""
    inside = f" where {domain}" if domain else ""
    shapes = {t: {"shape": shape} for t, shape in {"Q": ["m", "k"], "K": ["n", "k"]}.items()}
    lines = [
        "S[m, n] = sum[k] Q[m, k] * K[n, k]",
        f"R[m] = max[n] {scores}{inside}",
        f"P[m, n] = exp({scores} - R[m])",
        f"Z[m] = sum[n] P[m, n]{inside}",
    ]
    document = {"axes": dict(extents), "tensors": shapes, "operators": lines}
    return from_json({**document, "outputs": ["S", "Z"]})


@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("n", [36, 37, 48])
def test_a_domain_that_reaches_past_the_end_does_not_mask_there(n: int, more: int) -> None:
    """Of as many rows, the last may take positions that n does not have."""
    chain = softmax_of(f"n <= m + {more}", {"m": n, "n": n, "k": 16})
    agree(scheduled(chain, "m.nk", {"m": 16, "n": 16, "k": 16}), chain)


def test_neither_of_two_axes_that_bound_each_other_is_masked_by_that() -> None:
    """Lanes past both ends lie on the diagonal, too."""
    chain = chain_named("diagonal", {"b": 2, "m": 37, "n": 37, "k": 16})
    agree(scheduled(chain, "b.mnk", {"b": 1, "m": 16, "n": 16, "k": 16}), chain)


@pytest.mark.parametrize("domain", ["", "n <= m"])
def test_scores_that_are_a_result_are_stored_as_they_are(domain: str) -> None:
    chain = softmax_of(domain, {"m": 37, "n": 37, "k": 16})
    agree(scheduled(chain, "m.nk", {"m": 16, "n": 16, "k": 16}), chain)


@pytest.mark.parametrize("factor", ["0.5", "2.0", "-0.5", "0.0"])
@pytest.mark.parametrize("domain", ["", " where n < m"])
def test_a_maximum_of_multiples(factor: str, domain: str) -> None:
    """A positive factor may wait for the maximum, but row 0 of the domain has the lowest number,
    which is multiplied by nothing."""
    shapes = {"X": {"shape": ["m", "n"]}}
    lines = [f"R[m] = max[n] X[m, n] * {factor}{domain}"]
    chain = from_json({"axes": {"m": 37, "n": 40}, "tensors": shapes, "operators": lines})
    agree(scheduled(chain, "m.n", {"m": 16, "n": 16}), chain)


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
        expression = deep(chain, order)
        text = generate(scheduled(chain, expression, dict.fromkeys(order, 48)), "kernel").text
        assert max(map(len, text.splitlines())) <= 100


def test_the_source_says_how_to_launch_it() -> None:
    schedule = scheduled(
        attention(3, 64, 64, 32, 32, "float16"), "mh.nk", sizes("m=16 n=16 k=32 h=16")
    )
    source = generate(schedule, "kernel", TritonKnobs(warps=8, stages=3))
    assert source.grid == (3 * 4 * 2, 1, 1)
    assert source.parameters == ("Q", "K", "V", "O")
    assert source.dtypes == ("float16",) * 4
    assert (source.warps, source.stages) == (8, 3)


# --- what is refused


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
    with pytest.raises(Illegal, match="outside the loops that form the grid"):
        generate(schedule, "f")


def pooled(strides: list[int], dtype: str = "float32", reduce: str = "sum") -> Chain:
    """Windows of 2 x 4 elements, summed."""
    return from_json({
        "axes": {"m": 4, "i": 5, "n": 2, "p": 4},
        "tensors": {"A": {"shape": list("mnip"), "dtype": dtype, "strides": strides},
                    "Z": {"shape": list("mi"), "dtype": dtype}},
        "operators": [f"Z[m, i] = {reduce}[n, p] A[m, n, i, p]"],
    })  # fmt: skip


BESIDE, APART = [16, 8, 1, 1], [40, 20, 4, 1]


@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize(
    ("m", "turned"), [(1, "(tl.trans(A), 0)"), (2, "(tl.permute(A, (2, 0, 1)), 0)")]
)
def test_a_tile_whose_rows_overlap_is_turned_before_it_is_reduced(
    reduce: str, m: int, turned: str
) -> None:
    """Triton before 3.9 mixes the rows otherwise: an LpPool was wrong on an H200."""
    chain = pooled(BESIDE, reduce=reduce)
    source = agree(scheduled(chain, "mi.np", {"m": m, "i": 5, "n": 1, "p": 4}), chain)
    assert f"tl.{reduce}{turned}" in source.text


@pytest.mark.parametrize(
    ("chain", "expression", "n"),
    [(pooled(APART), "mi.np", 1), (pooled(BESIDE, "float16"), "mi.np", 1),
     (pooled(BESIDE), "mi.np", 2)],
    ids=["rows apart", "narrow", "no loop"],
)  # fmt: skip
def test_other_tiles_are_reduced_as_they_lie(chain: Chain, expression: str, n: int) -> None:
    source = agree(scheduled(chain, expression, {"m": 1, "i": 5, "n": n, "p": 4}), chain)
    assert "trans" not in source.text and "tl.sum(" in source.text
