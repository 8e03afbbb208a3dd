"""The same schedules run for real: TensorIR on this CPU against the chain's plain meaning."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from mcfuser.algebra.whole import exact
from mcfuser.chain import (
    Bounds,
    Chain,
    Digit,
    Stride,
    attention,
    fixed,
    flat_size,
    from_json,
    gemm,
    rows_merged,
)
from mcfuser.codegen.tensorir import TensorirSource, generate
from mcfuser.codegen.tensorir.build import compile_function
from mcfuser.codegen.tensorir.source import Panels
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import parse
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal, loops
from tests.support.drawn_schedules import DRAWN, at_run_time, drawn, errors, parted
from tests.support.paths import GOLDEN
from tests.support.pictures import depthwise
from tests.support.schedules import build, random_inputs, schedules
from tests.support.tensorir_agree import WIDE, call, compiled, drawn_arrays, error, run

GOLDEN = GOLDEN / "tensorir"
NARROW = TensorirKnobs(4, 3, 8)
SEEDS = 3


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedules_agree_with_the_chain(seed: int, request: pytest.FixtureRequest) -> None:
    """A fifth of each kind: every chain, bound or not, ragged, packed."""
    rng = random.Random(seed)
    count = (request.config.getoption("--cases") or DRAWN * SEEDS) // SEEDS

    def make(kind: str, schedule: Schedule) -> TensorirSource | None:
        knobs = replace(rng.choice((WIDE, NARROW)), neighbours=rng.choice((1, 2, 3, 16)))
        source = generate(schedule, "kernel", knobs)
        free = kind in ("bounded", "all") and not any(x.lo or x.hi for x in loops(schedule.body))
        return None if free else source

    for wrong, which in errors(rng, drawn(rng, count, make), seed):
        assert wrong < 1e-5, which


@pytest.mark.parametrize("parts", [3, 6])
@pytest.mark.parametrize("name", ["attention", "gemm"])
def test_parts_that_are_empty_add_nothing(name: str, parts: int) -> None:
    """Of four iterations, three parts take two, two and none, and six leave two without any. Parts
    that all have some are drawn at random above."""
    chain = build(name, {"b": 2, "m": 20, "n": 60, "k": 8, "h": 20})
    tiles = {"b": 1, "m": 16, "n": 16, "k": 8, "h": 32}
    schedule = parted(chain, parse("mh.nk"), tiles, "n", parts)
    empty = parts * schedule.span("n") - schedule.trips("n") >= schedule.span("n")
    assert empty
    inputs = random_inputs(chain, parts)
    first = chain.inputs[0]
    inputs[first] *= 30  # scores of several hundred: the parts' maxima lie far apart
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-5


def test_tiles_that_no_row_reaches_are_not_visited() -> None:
    """Whatever lies in keys and values past a causal row's tile, it is never read."""
    chain = build("causal", {"b": 1, "m": 32, "n": 96, "k": 16, "h": 16})
    inputs = random_inputs(chain, 0)
    expected = evaluate(chain, inputs)
    inputs["K"][:, 32:] = inputs["V"][:, 32:] = np.nan
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 16, "k": 16, "h": 16})
    assert error(run(schedule, chain, WIDE, inputs), expected) < 1e-5


def test_one_row_reads_its_keys_where_they_lie() -> None:
    """A decode step uses each element of the keys once: panels would only cost."""
    chain = attention(3, 1, 77, 33, 16)
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 32, "k": 48, "h": 16})
    assert "panels" not in generate(schedule, "kernel", WIDE).text
    inputs = random_inputs(chain, 0)
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-6


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        "s[n] = sum[k] B[k, n]",
        "s[n] = B[0, n] * 1.0",
        "s[n] = B[n, 3] * 1.0",
        "s[n] = sum[k] B[k, n] where 0.0 < B[n, k]",
        "s[n] = n * 0.1 where 0.0 < B[2, n]",
    ],
)
def test_a_constant_that_something_else_reads_as_well_stays_as_it_lies(
    other: str, constant: bool
) -> None:
    """What reads it wherever, in a body or a domain, finds no panels there."""
    document = {
        "axes": {"m": 20, "n": 80, "k": 80},
        "tensors": {
            "A": {"shape": ["m", "k"]},
            "B": {"shape": ["k", "n"], "constant": constant},
        },
        "operators": [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            other,
            "Y[m, n] = C[m, n] - s[n]",
        ],
    }
    chain = from_json(document)
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 80, "k": 8})
    inputs = random_inputs(chain, 0)
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-6


def test_extents_that_no_shape_shows_are_arguments() -> None:
    """Columns of views that are transposed: neither array has a dimension of m elements."""
    document = {
        "axes": {"m": [3, 50], "n": 32, "k": 24},
        "tensors": {
            "A": {"shape": ["m", "k"], "strides": [1, 50]},
            "B": {"shape": ["k", "n"]},
            "C": {"shape": ["m", "n"], "strides": [1, 50], "offset": 7},
        },
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    }
    chain = from_json(document)
    source = generate(schedules(chain, parse("mn.k"), {"m": 16, "n": 16, "k": 8}), "kernel", WIDE)
    assert source.scalars == ("m",)
    function = compile_function(source.text, "kernel")
    rng = np.random.default_rng(0)
    for m in (3, 16, 49, 50):
        plain = fixed(chain, {"m": m})
        flat = {n: rng.standard_normal(flat_size(plain, n)).astype("float32") for n in plain.inputs}
        expected = evaluate(plain, {n: logical(plain, n, a) for n, a in flat.items()})
        assert error(call(source, function, chain, flat, {"m": m}), expected) < 1e-6


def test_an_extent_outside_its_bounds_is_refused() -> None:
    chain = at_run_time(gemm(1, 64, 64, 32, 32), {"n": Bounds(10, 64)})
    source = generate(schedules(chain, parse("mh.nk"), dict.fromkeys("mnkh", 32)), "kernel", WIDE)
    (function,) = compiled([source.text])
    for n in (9, 65):
        plain = gemm(1, 64, n, 32, 32)
        arrays = [np.zeros(plain.shape(t), "float32") for t in ("A", "B", "D", "E")]
        arrays = [a if "n" in chain.tensor(t).shape else a.reshape(-1)
                  for t, a in zip("ABDE", arrays, strict=True)]  # fmt: skip
        with pytest.raises(RuntimeError, match="axis 'n' needs an extent from 10 to 64"):
            function(*(tvm.runtime.tensor(a) for a in arrays))


def test_what_is_timed_does_not_ask_what_it_is_given() -> None:
    chain = gemm(1, 8, 8, 8, 8)
    source = generate(schedules(chain, parse("mh.nk"), dict.fromkeys("mnkh", 8)), "kernel", WIDE)
    longer = [tvm.runtime.tensor(np.zeros(2 * 64, "float32")) for _ in "ABDE"]
    compile_function(source.text, "kernel")(*longer)
    with pytest.raises(ValueError, match="shape"):
        compiled([source.text])[0](*longer)


def test_views_are_read_and_written_where_they_lie() -> None:
    """Heads split out of rows of 3 x 8: strides, and an offset, on both sides."""
    document = {
        "axes": {"b": 3, "m": 20, "n": 20, "k": 8},
        "tensors": {
            "Q": {"shape": ["b", "m", "k"], "strides": [8, 24, 1], "offset": 48},
            "K": {"shape": ["b", "n", "k"], "strides": [8, 24, 1]},
            "S": {"shape": ["b", "m", "n"], "strides": [20, 60, 1], "offset": 5},
        },
        "operators": ["S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]"],
    }
    chain = from_json(document)
    flat, known = drawn_arrays(chain)
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 16, "k": 8})
    found = run(schedule, chain, WIDE, flat)
    assert error(found, evaluate(chain, known)) < 1e-6


@pytest.mark.parametrize("rows", [10, 16])
def test_rows_are_written_in_runs_that_lie_apart(rows: int) -> None:
    """As into a concatenation along the rows of several matrices."""
    chain = from_json({
        "axes": {"m": 3 * rows, "n": 40, "k": 24},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]},
                    "E": {"shape": ["m", "n"]}},
        "operators": ["E[m, n] = sum[k] A[m, k] * B[k, n]"],
    })  # fmt: skip
    runs = (Digit(3, 40 * (rows + 6)), Digit(rows, 40))
    laid = replace(chain.tensor("E"), strides=(runs, 1), offset=6 * 40)
    chain = replace(chain, tensors=tuple(laid if t.name == "E" else t for t in chain.tensors))
    flat, known = drawn_arrays(chain)
    schedule = schedules(chain, parse("mn.k"), {"m": 8, "n": 16, "k": 8})
    assert error(run(schedule, chain, WIDE, flat), evaluate(chain, known)) < 1e-6


def convolution(columns: int) -> Chain:
    """A convolution of 2 groups over windows of 3 x 2, whose columns lie side by side."""
    return from_json({
        "axes": {"g": 2, "m": 3, "i": 13, "n": columns, "k": 6, "s": 3, "t": 2},
        "tensors": {
            "A": {"shape": ["g", "k", "m", "i", "s", "t"], "strides": [420, 70, 14, 1, 14, 1]},
            "B": {"shape": ["g", "k", "s", "t", "n"], "constant": True},
        },
        "operators": [
            "C[g, m, i, n] = sum[k, s, t] A[g, k, m, i, s, t] * B[g, k, s, t, n]",
            "E[g, m, i, n] = max(C[g, m, i, n], 0.0)",
        ],
    })  # fmt: skip


@pytest.mark.parametrize("columns", [40, 64])
@pytest.mark.parametrize(
    "tiles",
    [{"n": 32, "k": 4, "s": 1, "t": 2}, {"n": 64, "k": 6, "s": 3, "t": 1}, {"k": 2, "s": 3}],
)
def test_the_weights_of_windows_are_packed_when_compiling(
    columns: int, tiles: dict[str, int]
) -> None:
    """Whatever part of the depth a tile has, a panel's rows lie one after the other."""
    chain = convolution(columns)
    every = {"g": 1, "m": 1, "i": 8, "n": columns, "k": 6, "s": 3, "t": 2}
    schedule = schedules(chain, parse("mni.kst"), every | tiles)
    source = generate(schedule, "kernel", WIDE)
    width = dict(source.packed)["B"].width
    assert source.packed == (("B", Panels((1, 2, 3), 4, width)),)
    assert "panels" not in source.text, "nothing is packed when running"
    flat, known = drawn_arrays(chain)
    assert error(run(schedule, chain, WIDE, flat), evaluate(chain, known)) < 1e-6


@pytest.mark.parametrize("columns", [40, 64])
def test_the_rows_of_a_picture_are_one_axis(columns: int) -> None:
    """A micro-tile has positions of two rows; each is read where it lies."""
    chain = convolution(columns)
    one = rows_merged(chain)
    assert [a.name for a in one.axes] == ["g", "m", "n", "k", "s", "t"]
    tiles = {"g": 1, "m": 16, "n": 32, "k": 4, "s": 1, "t": 2}
    schedule = schedules(one, parse("mn.kst"), tiles)
    flat, known = drawn_arrays(chain)
    found = run(schedule, one, WIDE, flat)["E"].reshape(chain.shape("E"))
    assert error({"E": found}, evaluate(chain, known)) < 1e-6


@pytest.mark.parametrize(
    "operator",
    ["E[m, n] = A[m, n] * 2.0", "E[n] = sum[m] A[m, n]", "E[m] = max[n] A[m, n]",
     "E[n] = sum[m] A[m, n] * B[m]", "E[m] = sum[n] A[m, n] * D[n]", "E[n, m] = A[m, n] - B[m]"],
)  # fmt: skip
@pytest.mark.parametrize("last", [(Digit(4, 9), Digit(6, 1)), (Digit(4, 1), Digit(6, 4)), 1])
def test_positions_in_digits_are_read_wherever_they_lie(operator: str, last: Stride) -> None:
    """Along the vectors, and across them: slow, but right."""
    document = {
        "axes": {"m": 15, "n": 24},
        "tensors": {t: {"shape": list(s)} for t, s in (("A", "mn"), ("B", "m"), ("D", "n"))
                    if f"{t}[" in operator},
        "operators": [operator],
    }  # fmt: skip
    chain = from_json(document)
    strides = ((Digit(3, 200), Digit(5, 36)), last)
    laid = replace(chain.tensor("A"), strides=strides, offset=3)
    chain = replace(chain, tensors=(laid, *(t for t in chain.tensors if t.name != "A")))
    flat, known = drawn_arrays(chain)
    over = [a for a in "mn" if f"[{a}] A" in operator]
    kept = [a for a in "mn" if a not in over]
    expression = parse("".join(kept) + ("." + "".join(over) if over else ""))
    schedule = schedules(chain, expression, {"m": 8, "n": 16})
    assert error(run(schedule, chain, WIDE, flat), evaluate(chain, known)) < 1e-6


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 7, 14, 28, 33])
def test_windows_are_reduced_in_registers_whatever_their_step(step: int, columns: int) -> None:
    chain = depthwise(5, columns, step)
    flat, known = drawn_arrays(chain)
    schedule = schedules(chain, parse("miks"), {"m": 2, "i": columns, "k": 3, "s": 3})
    text = generate(schedule, "kernel", WIDE).text
    assert "panels" not in text, "every element is used once"
    assert ("T.unroll" in text) == (step > 1 and columns >= 4), "vectors of what lies apart"
    assert error(run(schedule, chain, WIDE, flat), evaluate(chain, known)) < 1e-6


def test_what_fills_no_vector_is_in_one_that_begins_earlier() -> None:
    schedule = schedules(depthwise(5, 31), parse("miks"), {"m": 5, "i": 31, "k": 3, "s": 3})
    lines = generate(schedule, "kernel", WIDE).text.splitlines()
    stored = [i for i, line in enumerate(lines) if "E_flat[" in line and "=" in line]
    heads = [lines[i - 1].split("in ")[1] for i in stored]
    assert heads == ["T.vectorized(16):"] * 2
    assert "15 + i_l" in lines[stored[1]]


def test_a_window_s_row_that_fills_vectors_is_read_along_itself() -> None:
    document = {
        "axes": {"m": 8, "n": 32},
        "tensors": {"X": {"shape": ["m", "n"]}},
        "operators": ["M[m] = max[n] X[m, n]"],
    }
    schedule = schedules(from_json(document), parse("mn"), {"m": 8, "n": 32})
    assert "lane[l] = lane[l] + lane[l + 8]" not in generate(schedule, "kernel", WIDE).text
    assert "T.max(lane[l], lane[l + 8])" in generate(schedule, "kernel", WIDE).text


def test_half_precision_is_stored_and_accumulated_wide() -> None:
    chain = attention(2, 32, 32, 16, 16, "float16")
    inputs = {n: a.astype("float16") for n, a in random_inputs(chain, 0).items()}
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 16, "k": 16, "h": 16})
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-3


def test_masked_scores_of_minus_infinity_weigh_nothing() -> None:
    chain = build("softmax_in_place", {"b": 1, "m": 16, "n": 40, "k": 8, "h": 16})
    inputs = random_inputs(chain, 0)
    inputs["M"][:, 25:] = -np.inf
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 16, "k": 8, "h": 16})
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-6


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_functions_are_accurate(scale: float) -> None:
    """exp, exp2, erf, tanh are polynomials: within 5e-7 of the true values where these matter."""
    lines = [
        "E[m] = exp(X[m])", "F[m] = erf(X[m])", "G[m] = tanh(X[m])", "H[m] = exp2(X[m])"
    ]  # fmt: skip
    document = {
        "axes": {"m": 4096},
        "tensors": {"X": {"shape": ["m"]}},
        "operators": lines,
        "outputs": ["E", "F", "G", "H"],
    }
    chain = from_json(document)
    inputs = {"X": np.random.default_rng(0).standard_normal(4096).astype("float32") * scale}
    found = run(schedules(chain, parse("m."), {"m": 64}), chain, WIDE, inputs)
    expected = evaluate(chain, inputs)
    kept = np.abs(inputs["X"]) < 80
    relative = np.abs(found["E"] - expected["E"]) / expected["E"]
    assert relative[kept].max() < 5e-7
    assert (np.abs(found["H"] - expected["H"]) / expected["H"])[kept].max() < 5e-7
    assert np.abs(found["F"] - expected["F"]).max() < 5e-7
    assert (np.abs(found["G"] - expected["G"]) <= 1e-6 * np.abs(expected["G"])).all()


def test_numbers_are_rounded_to_even_and_narrow_results_bounded() -> None:
    """In vectors and past them; what is too large for its type, or infinite, is its last number."""
    document = {
        "axes": {"m": 53},
        "tensors": {
            "X": {"shape": ["m"]},
            **{n: {"shape": ["m"], "dtype": d}
               for n, d in (("I", "int8"), ("J", "uint8"), ("K", "int16"))},
        },
        "operators": ["E[m] = round(X[m])", "I[m] = round(X[m])", "J[m] = X[m] * 3.0",
                      "K[m] = floor(X[m] * X[m])"],
        "outputs": ["E", "I", "J", "K"],
    }  # fmt: skip
    chain = from_json(document)
    x = np.arange(53).astype("float32") / 2 - 13
    x[40:49] = 8388608.5, -8388607.5, 4194304.5, 1e9, -1e9, 3e38, np.inf, -np.inf, 127.5
    schedule = schedules(exact(chain), parse("m."), {"m": 53})
    found = run(schedule, chain, WIDE, {"X": x})
    assert (found["E"] == np.rint(x)).all()
    assert (found["I"] == np.clip(np.rint(x), -128, 127)).all()
    assert (found["J"] == np.trunc(np.clip(x * np.float32(3.0), 0, 255))).all()
    squares = np.floor(x.astype("float64") ** 2)
    assert (found["K"] == np.clip(squares, -(2**15), 2**15 - 1)).all()


def test_of_long_expressions_two_vectors_are_computed_at_once() -> None:
    """Each of their steps waits for the one before it."""
    texts = []
    for body in ("X[m] * 2.0 + 1.0", "tanh(X[m])"):
        document = {"axes": {"m": 75}, "tensors": {"X": {"shape": ["m"]}},
                    "operators": [f"Y[m] = {body}"]}  # fmt: skip
        chain = from_json(document)
        schedule = schedules(chain, parse("m."), {"m": 75})
        texts.append(generate(schedule, "kernel", WIDE).text)
        x = np.random.default_rng(0).standard_normal(75).astype("float32")
        expected = evaluate(chain, {"X": x.astype("float64")})
        assert error(run(schedule, chain, WIDE, {"X": x}), expected) < 1e-6
    widths = [re.findall(r"T.vectorized\((\d+)\)", text) for text in texts]
    assert widths == [["16", "16"], ["32", "16"]]


def test_what_is_not_a_number_stays_so_and_what_is_too_large_is_infinite() -> None:
    document = {
        "axes": {"m": 32},
        "tensors": {"X": {"shape": ["m"]}},
        "operators": [
            "E[m] = exp(X[m])",
            "F[m] = erf(X[m])",
            "G[m] = tanh(X[m])",
            "H[m] = max(X[m], 0.0)",
            "I[m] = 1.0 / (1.0 + exp(-X[m]))",
            "J[m] = exp2(X[m] * 2.0)",
        ],
        "outputs": ["E", "F", "G", "H", "I", "J"],
    }
    chain = from_json(document)
    x = np.zeros(32, "float32")
    x[:4] = np.nan, np.inf, -np.inf, 100.0
    found = run(schedules(chain, parse("m."), {"m": 32}), chain, WIDE, {"X": x})
    expected = {
        "E": (np.nan, np.inf, 0.0, np.inf),
        "F": (np.nan, 1.0, -1.0, 1.0),
        "G": (np.nan, 1.0, -1.0, 1.0),
        "H": (np.nan, np.inf, 0.0, 100.0),
        "I": (np.nan, 1.0, 0.0, 1.0),
        "J": (np.nan, np.inf, 0.0, np.inf),
    }
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name][:4], wanted, rtol=1e-6, err_msg=name)


SMALL = {"m": 32, "n": 32, "k": 32, "h": 32}
CASES = {
    "gemm_mhnk": (gemm(1, 64, 64, 32, 32), "mh.nk", {"m": 32, "n": 32, "k": 16, "h": 32}, 1),
    "gemm_flat": (gemm(1, 64, 64, 32, 32), "m.n(k,h)", {"m": 32, "n": 32, "k": 16, "h": 16}, 1),
    "gemm_ragged": (gemm(2, 40, 77, 20, 33), "mh.nk", {"m": 16, "n": 32, "k": 20, "h": 33}, 1),
    "attention_whole": (attention(4, 64, 64, 32, 32), "mh.nk", SMALL | {"n": 64}, 1),
    "attention_rolled": (attention(4, 64, 64, 32, 32), "mh.nk", SMALL, 1),
    "attention_split": (attention(1, 32, 256, 32, 32), "mh.nk", SMALL, 3),
    "attention_causal": (
        build("causal", {"b": 2, "m": 64, "n": 64, "k": 32, "h": 32}), "mh.nk", SMALL, 1,
    ),
    "depthwise": (depthwise(5, 21, 2), "miks", {"m": 5, "i": 21, "k": 3, "s": 3}, 1),
    "convolution": (
        convolution(40), "mni.kst", {"m": 3, "i": 13, "n": 32, "k": 4, "s": 1, "t": 2}, 1,
    ),
    "gemm_run_time": (
        at_run_time(gemm(2, 64, 64, 32, 32), {"b": Bounds(1, 8), "n": Bounds(1, 100)}),
        "mh.nk", SMALL, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_as_it_was(name: str, update_golden: bool) -> None:
    chain, expression, tiles, parts = CASES[name]
    schedule = (
        schedules(chain, parse(expression), tiles)
        if parts == 1
        else parted(chain, parse(expression), tiles, "n", parts)
    )
    text = generate(schedule, "kernel", WIDE).text
    path = GOLDEN / f"{name}.py"
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "run pytest --update-golden if the change is meant"


def test_tiles_kept_side_by_side_must_be_whole_vectors() -> None:
    chain = gemm(1, 64, 60, 32, 32)
    schedule = schedules(chain, parse("mkhn"), {"m": 32, "n": 20, "k": 16, "h": 32})
    with pytest.raises(Illegal, match="axis 'n' are kept side by side"):
        generate(schedule, "kernel", WIDE)
