"""Products of small whole numbers, two or four at once: exact, whatever shapes and layouts are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import tvm

from mcfuser.chain import Bounds, Chain, fixed, flat_size, from_json
from mcfuser.codegen.script import prim_func
from mcfuser.codegen.tensorir import TensorirSource, from_record, generate, to_record
from mcfuser.codegen.tensorir.build import pack
from mcfuser.codegen.tensorir.source import Panels
from mcfuser.expr import BOUNDS
from mcfuser.lowering.tensorir.dots import PAIR, QUAD, longest
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.host import HOST, WIDE_QUADS, runs
from tests.support.paths import GOLDEN
from tests.support.schedules import schedules
from tests.support.tensorir_agree import call, compiled

PAIRED, QUADS = TensorirKnobs(6, 2, 8, dots=PAIR), TensorirKnobs(6, 2, 8, dots=QUAD)
SHAPES = {
    PAIR: (PAIRED, TensorirKnobs(4, 3, 8, dots=PAIR)),
    QUAD: tuple(filter(runs, (QUADS, TensorirKnobs(4, 3, 8, dots=QUAD), WIDE_QUADS))),
}
MULTIPLIED = {PAIR: "pmadd", QUAD: "vpdpbusd"}
lengths = pytest.mark.parametrize(
    "length",
    [
        pytest.param(
            n,
            marks=pytest.mark.skipif(longest(HOST) < n, reason=f"this CPU has no {MULTIPLIED[n]}"),
        )
        for n in (PAIR, QUAD)
    ],
)
NOTHING: Mapping[str, int] = {}


def quantized(extents: dict[str, int], left: str = "uint8", right: str = "int8",
              zero: str = "", constant: bool = True, turned: bool = False) -> Chain:  # fmt: skip
    """Rows of a `left` type, less a zero point, times columns of a `right` type, with scales."""
    b, t = ([a] if a in extents else [] for a in "bt")
    depth = ["k", *t]
    shapes = {"X": [*b, "m", *depth], "W": [*b, "n", *depth] if turned else [*b, *depth, "n"]}
    tensors = {
        "X": {"shape": shapes["X"], "dtype": left},
        "W": {"shape": shapes["W"], "dtype": right, "constant": constant},
        "Z": {"shape": [1], "dtype": left},
        "S": {"shape": ["n"]},
    }
    x, w = (f"float32({n}[{', '.join(shapes[n])}])" for n in "XW")
    kept, over = ", ".join([*b, "m", "n"]), ", ".join(depth)
    lines = [f"C[{kept}] = sum[{over}] {x} * {w}", f"Y[{kept}] = C[{kept}] * S[n]"]
    if zero:
        where = ", ".join(shapes["X"])
        lines = [f"P[{where}] = {x} - {zero}", lines[0].replace(x, f"P[{where}]"), lines[1]]
    used = {n: d for n, d in tensors.items() if any(f"{n}[" in line for line in lines)}
    return from_json({"axes": extents, "tensors": used, "operators": lines})


def arrays(chain: Chain, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers of each type, its ends among them; and reals."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in chain.inputs:
        size, dtype = flat_size(chain, name), chain.tensor(name).dtype
        if dtype in BOUNDS:
            low, high = BOUNDS[dtype]
            values = rng.integers(low, high + 1, size)
            values[rng.random(size) < 0.2] = rng.choice([low, high])
            found[name] = values.astype(dtype)
        else:
            found[name] = rng.standard_normal(size).astype("float32")
    return found


def check(made: list[tuple[Chain, TensorirSource]], extents: Mapping[str, int] = NOTHING) -> None:
    """All functions compute what their chains do: sums exactly, which are multiplied once."""
    functions = compiled([s.text for _, s in made])
    for (own, source), function in zip(made, functions, strict=True):
        plain = fixed(own, extents)
        flat = arrays(plain)
        found = call(source, function, own, flat, extents)
        expected = evaluate(plain, {n: logical(plain, n, a) for n, a in flat.items()})
        assert any(m in source.text for m in MULTIPLIED.values())
        for n, a in found.items():
            assert np.abs(a - expected[n]).max() <= 2e-7 * np.abs(expected[n]).max(), source.text


def drawn(rng: random.Random, length: int) -> tuple[Chain, Schedule]:
    """A chain with a schedule of its own whose products may be computed of dot products."""
    extents = {a: rng.choice((1, 5, 16, 33, 64)) for a in "mn"}
    extents["k"] = rng.choice((2, 7, 16, 48, 65, 66))
    if rng.random() < 0.4:
        extents["b"] = rng.choice((1, 3))
    if rng.random() < 0.4:
        extents["t"] = rng.choice((length, 3 * length, 16))
    chain = quantized(
        extents,
        left=rng.choice(("uint8", "int8", *["int16"] * (length == PAIR))),
        right=rng.choice(("int8", *["uint8"] * (length == PAIR))),
        zero=rng.choice(("", "", "126.0", "float32(Z[0])")),
        constant=rng.random() < 0.6,
        turned=rng.random() < 0.4,
    )
    tiles = {a: rng.choice((8, 16, 24, 32, 64)) for a in "bmnkt"}
    every = tilings(chain)
    expression = bind(chain, rng.choice(every))
    return chain, schedules(chain, expression, tiles)


@pytest.mark.thorough
@lengths
@pytest.mark.parametrize("seed", range(3))
def test_random_products_are_exact(seed: int, length: int, request: pytest.FixtureRequest) -> None:
    rng = random.Random(seed)
    count = (request.config.getoption("--cases") or 24) // 3
    made: list[tuple[Chain, TensorirSource]] = []
    while len(made) < count:
        try:
            chain, schedule = drawn(rng, length)
            source = generate(schedule, "kernel", rng.choice(SHAPES[length]))
        except Illegal:
            continue
        if MULTIPLIED[length] in source.text:
            made.append((chain, source))
    check(made)


@pytest.mark.thorough
@lengths
@pytest.mark.parametrize("k", [5, 6, 7, 64, 65])
@pytest.mark.parametrize("constant", [True, False])
def test_the_last_dot_product_is_filled_with_zeros(k: int, constant: bool, length: int) -> None:
    chain = quantized({"m": 7, "n": 20, "k": k}, zero="126.0", constant=constant)
    made = []
    for tile in {length, 32, k + -k % length}:
        schedule = schedules(chain, parse("mn.k"), {"m": 7, "n": 20, "k": tile})
        made.append((chain, generate(schedule, "kernel", SHAPES[length][0])))
        assert MULTIPLIED[length] in made[-1][1].text
    check(made)


@lengths
def test_rows_columns_and_depth_that_are_known_at_run_time(length: int) -> None:
    chain = quantized({"m": 33, "n": 40, "k": 64}, zero="float32(Z[0])", constant=False)
    axes = [replace(a, extent=Bounds(1, chain.size(a.name))) for a in chain.axes]
    chain = replace(chain, axes=tuple(axes))
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 16, "k": 16})
    source = generate(schedule, "kernel", SHAPES[length][0])
    assert MULTIPLIED[length] in source.text
    for m, n, k in ((33, 40, 64), (1, 17, 31), (9, 1, 1)):
        extents = {"m": m, "n": n, "k": k}
        check([(chain, source)], extents)


@lengths
def test_a_sum_of_the_largest_numbers_does_not_overflow(length: int) -> None:
    """255 x 128 x 65,793 is more than 2^31: such tiles are of other kernels."""
    for k in (65536, 65792, 65798):
        chain = quantized({"m": 1, "n": 8, "k": k})
        schedule = schedules(chain, parse("mn.k"), {"m": 1, "n": 8, "k": k})
        source = generate(schedule, "kernel", SHAPES[length][0])
        assert (MULTIPLIED[length] in source.text) == (k < 65793)
    chain = quantized({"m": 1, "n": 8, "k": 65792})
    schedule = schedules(chain, parse("mn.k"), {"m": 1, "n": 8, "k": 65792})
    source = generate(schedule, "kernel", SHAPES[length][0])
    (function,) = compiled([source.text])
    inputs = {"X": np.full(65792, 255, "uint8"), "W": np.full(65792 * 8, -128, "int8"),
              "S": np.ones(8, "float32")}  # fmt: skip
    assert (call(source, function, chain, inputs, {})["Y"] == -255.0 * 128 * 65792).all()


@lengths
def test_two_products_of_one_operand_share_its_copy(length: int) -> None:
    chain = from_json({
        "axes": {"m": 16, "n": 24, "k": 32},
        "tensors": {
            "X": {"shape": ["m", "k"], "dtype": "int8"},
            "V": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
            "W": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
        },
        "operators": [
            "C[m, n] = sum[k] float32(X[m, k]) * float32(V[k, n])",
            "D[m, n] = sum[k] float32(X[m, k]) * float32(W[k, n])",
            "Y[m, n] = C[m, n] * D[m, n]",
        ],
    })  # fmt: skip
    schedule = schedules(chain, parse("mnk"), {"m": 16, "n": 24, "k": 32})
    source = generate(schedule, "kernel", SHAPES[length][0])
    assert source.text.count("_left = T.alloc_buffer") == 1
    check([(chain, source)])


def windows(zero: int, left: str = "uint8") -> Chain:
    """A convolution over 3 x 3 positions of a picture with 8 channels last, with its zero point
    around it."""
    p, rows, columns = "X[m, s, i, t, k]", 6, 7
    strides = [columns * 8, columns * 8, 8, 8, 1]
    padding = [{"dimensions": [0, 1], "extent": rows, "stride": columns * 8, "before": 1},
               {"dimensions": [2, 3], "extent": columns, "stride": 8, "before": 1}]  # fmt: skip
    tensors = {
        "X": {"shape": ["m", "s", "i", "t", "k"], "dtype": left, "strides": strides,
              "padding": [p | {"value": float(zero)} for p in padding]},
        "W": {"shape": ["n", "k", "s", "t"], "dtype": "int8", "constant": True},
        "Z": {"shape": [1], "dtype": left},
        "S": {"shape": ["n"]},
    }  # fmt: skip
    lines = [f"P[m, s, i, t, k] = float32({p}) - {float(zero)}",
             "C[m, i, n] = sum[s, t, k] P[m, s, i, t, k] * float32(W[n, k, s, t])",
             "Y[m, i, n] = C[m, i, n] * S[n]"]  # fmt: skip
    if not zero:
        lines = [lines[1].replace("P[m, s, i, t, k]", f"float32({p})"), lines[2]]
    used = {n: t for n, t in tensors.items() if any(f"{n}[" in line for line in lines)}
    extents = {"m": rows, "i": columns, "n": 24, "k": 8, "s": 3, "t": 3}
    return from_json({"axes": extents, "tensors": used, "operators": lines})


@lengths
@pytest.mark.parametrize("left", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 77])
def test_windows_are_read_in_their_box(zero: int, left: str, length: int) -> None:
    """Bytes without a sign are multiplied where they are copied with their padding, others are
    copied once more, window by window."""
    chain, made = windows(zero, left), []
    for tiles in ({"m": 6, "i": 7}, {"m": 2, "i": 7}, {"m": 4, "i": 3, "n": 16, "k": 4}):
        sizes = {a.name: chain.size(a.name) for a in chain.axes} | tiles
        schedule = schedules(chain, parse("min.kst"), sizes)
        made.append((chain, generate(schedule, "kernel", SHAPES[length][0])))
        copied = length == PAIR or left == "int8"
        assert ("C_left" in made[-1][1].text) == copied
        assert MULTIPLIED[length] in made[-1][1].text and "P_tile" not in made[-1][1].text
    check(made)


def layers(rng: random.Random, zero: bool, relu: bool) -> Chain:
    """Two products, the second of the bytes that the first is rounded to, less a zero point."""
    choices = {"m": (5, 16, 33), "k": (8, 20), "n": (16, 24, 40), "h": (8, 20)}
    extents = {a: rng.choice(n) for a, n in choices.items()}
    tensors = {
        "X": {"shape": ["m", "k"], "dtype": "uint8"}, "Z": {"shape": [1], "dtype": "uint8"},
        "V": {"shape": ["k", "n"], "dtype": "int8", "constant": True},
        "W": {"shape": ["n", "h"], "dtype": "int8", "constant": True},
    }  # fmt: skip
    low = "0.0" if relu else "3.0"
    lines = [
        "C[m, n] = sum[k] float32(X[m, k]) * float32(V[k, n])",
        f"Q[m, n] = min(max(round(C[m, n] * 0.00390625) + 7.0, {low}), 255.0)"
        + " - float32(Z[0])" * zero,
        "Y[m, h] = sum[n] Q[m, n] * float32(W[n, h])",
    ]
    used = {n: t for n, t in tensors.items() if any(f"{n}[" in line for line in lines)}
    return from_json({"axes": extents, "tensors": used, "operators": lines})


@pytest.mark.thorough
@lengths
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_one_product_is_rounded_to_is_multiplied_by_the_next(
    seed: int, zero: bool, length: int
) -> None:
    """Its bytes are made where they are multiplied; no float of it is ever in memory."""
    rng = random.Random(seed)
    made: list[tuple[Chain, TensorirSource]] = []
    while len(made) < 8:
        chain = layers(rng, zero, rng.random() < 0.5)
        tiles = {a: rng.choice((8, 16, 24, 64)) for a in "mknh"}
        with suppress(Illegal):
            schedule = schedules(chain, bind(chain, rng.choice(tilings(chain))), tiles)
            source = generate(schedule, "kernel", rng.choice(SHAPES[length]))
            if source.text.count("sum0 = T.alloc_buffer"):
                made.append((chain, source))
    check(made)
    assert not any("Q_tile" in source.text for _, source in made)


@pytest.mark.parametrize(("name", "knobs"), [("paired", PAIRED), ("quads", QUADS)])
def test_the_text(name: str, knobs: TensorirKnobs, update_golden: bool) -> None:
    """Ragged rows, columns and depth, with a zero point."""
    chain = quantized({"m": 20, "n": 40, "k": 70}, zero="float32(Z[0])")
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 32, "k": 64})
    text = generate(schedule, "kernel", knobs).text
    path = GOLDEN / "tensorir" / f"{name}.py"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("cpu", "lanes", "length", "instruction"),
    [
        ("haswell", 8, PAIR, "vpmaddwd"),
        ("skylake-avx512", 16, PAIR, "vpmaddwd"),
        ("icelake-server", 16, PAIR, "vpdpwssd"),
        ("icelake-server", 16, QUAD, "vpdpbusd"),
        ("cascadelake", 8, QUAD, "vpdpbusd"),
        ("alderlake", 8, QUAD, "vpdpbusd"),
        ("znver4", 16, QUAD, "vpdpbusd"),
    ],
)
def test_wider_cpus_use_the_instruction_that_they_have(
    cpu: str, lanes: int, length: int, instruction: str
) -> None:
    """The CPU need not be at hand: LLVM adds products of pairs in one instruction where it can."""
    chain = quantized({"m": 16, "n": 64, "k": 64})
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 64, "k": 64})
    knobs = TensorirKnobs(6 if lanes == 8 else 8, 2, lanes, dots=length)
    text = generate(schedule, "kernel", knobs).text
    function = prim_func(text).with_attr("global_symbol", "kernel")
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"})
    built = tvm.compile(tvm.IRModule({"kernel": function}), target=target)
    lines = built.mod.inspect_source("asm").splitlines()
    register = "zmm" if lanes == 16 else "ymm"
    assert any(instruction in line and register in line for line in lines)


@pytest.mark.parametrize("dot", [PAIR, QUAD])
def test_constants_are_packed_with_neighbours_side_by_side(dot: int) -> None:
    weights = np.arange(5 * 6, dtype=np.int8).reshape(5, 6)
    many = -(-5 // dot)
    packed = pack(weights, Panels((0,), 1, 4, dot=dot)).reshape(2, many, 4, dot)
    whole = np.zeros((many * dot, 8), np.int8)
    whole[:5, :6] = weights
    for panel in range(2):
        for i in range(many):
            for lane in range(4):
                here = whole[dot * i : dot * i + dot, 4 * panel + lane]
                assert (packed[panel, i, lane] == here).all()


def test_a_record_tells_how_constants_are_packed() -> None:
    chain = quantized({"m": 16, "n": 64, "k": 64})
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 64, "k": 64})
    source = generate(schedule, "kernel", PAIRED)
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    assert dict(source.packed)["W"].dot == PAIR
    assert from_record(to_record(source), source.text, *same) == source
