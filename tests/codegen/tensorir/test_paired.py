"""Products of small whole numbers in pairs: exact, whatever the shapes and the layouts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import tvm

from mcfuser.chain import Bounds, Chain, fixed, flat_size, from_json
from mcfuser.codegen.script import prim_func
from mcfuser.codegen.tensorir import TensorirSource, from_record, generate, to_record
from mcfuser.codegen.tensorir.build import pack
from mcfuser.codegen.tensorir.source import Panels
from mcfuser.devices.cpu import unmeasured_cpu
from mcfuser.expr import BOUNDS
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.paired import INSTRUCTIONS
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.paths import GOLDEN
from tests.support.schedules import schedules
from tests.support.tensorir_agree import call, compiled

PAIRED = TensorirKnobs(6, 2, 8, paired=True)
SHAPES = (PAIRED, TensorirKnobs(4, 3, 8, paired=True))
MULTIPLIED = "pmadd"
needs_instruction = pytest.mark.skipif(
    unmeasured_cpu().bits not in INSTRUCTIONS, reason="this CPU multiplies no pairs of numbers"
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
        assert MULTIPLIED in source.text
        for n, a in found.items():
            assert np.abs(a - expected[n]).max() <= 2e-7 * np.abs(expected[n]).max(), source.text


def drawn(rng: random.Random) -> tuple[Chain, Schedule]:
    """A chain with a schedule of its own whose products are paired."""
    extents = {a: rng.choice((1, 5, 16, 33, 64)) for a in "mn"}
    extents["k"] = rng.choice((2, 7, 16, 48, 65))
    if rng.random() < 0.4:
        extents["b"] = rng.choice((1, 3))
    if rng.random() < 0.4:
        extents["t"] = rng.choice((2, 6, 16))
    chain = quantized(
        extents,
        left=rng.choice(("uint8", "int8", "int16")),
        right=rng.choice(("int8", "uint8")),
        zero=rng.choice(("", "", "126.0", "float32(Z[0])")),
        constant=rng.random() < 0.6,
        turned=rng.random() < 0.4,
    )
    tiles = {a: rng.choice((8, 16, 24, 32, 64)) for a in "bmnkt"}
    every = tilings(chain)
    expression = bind(chain, rng.choice(every))
    return chain, schedules(chain, expression, tiles)


@needs_instruction
@pytest.mark.parametrize("seed", range(3))
def test_random_products_are_exact(seed: int, request: pytest.FixtureRequest) -> None:
    rng = random.Random(seed)
    count = (request.config.getoption("--cases") or 24) // 3
    made: list[tuple[Chain, TensorirSource]] = []
    while len(made) < count:
        try:
            chain, schedule = drawn(rng)
            source = generate(schedule, "kernel", rng.choice(SHAPES))
        except Illegal:
            continue
        if MULTIPLIED in source.text:
            made.append((chain, source))
    check(made)


@needs_instruction
@pytest.mark.parametrize("k", [6, 7, 64, 65])
@pytest.mark.parametrize("constant", [True, False])
def test_the_last_pair_is_filled_with_zero(k: int, constant: bool) -> None:
    chain = quantized({"m": 7, "n": 20, "k": k}, zero="126.0", constant=constant)
    made = []
    for tile in {2, 32, k + k % 2}:
        schedule = schedules(chain, parse("mn.k"), {"m": 7, "n": 20, "k": tile})
        made.append((chain, generate(schedule, "kernel", PAIRED)))
    check(made)


@needs_instruction
def test_rows_columns_and_depth_that_are_known_at_run_time() -> None:
    chain = quantized({"m": 33, "n": 40, "k": 64}, zero="float32(Z[0])", constant=False)
    axes = [replace(a, extent=Bounds(1, chain.size(a.name))) for a in chain.axes]
    chain = replace(chain, axes=tuple(axes))
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 16, "k": 16})
    source = generate(schedule, "kernel", PAIRED)
    for m, n, k in ((33, 40, 64), (1, 17, 31), (9, 1, 1)):
        extents = {"m": m, "n": n, "k": k}
        check([(chain, source)], extents)


@needs_instruction
def test_a_sum_of_the_largest_numbers_does_not_overflow() -> None:
    """255 x 128 x 65,793 is more than 2^31: such tiles are of other kernels."""
    for k in (65536, 65792, 65798):
        chain = quantized({"m": 1, "n": 8, "k": k})
        schedule = schedules(chain, parse("mn.k"), {"m": 1, "n": 8, "k": k})
        source = generate(schedule, "kernel", PAIRED)
        assert (MULTIPLIED in source.text) == (k < 65793)
    chain = quantized({"m": 1, "n": 8, "k": 65792})
    schedule = schedules(chain, parse("mn.k"), {"m": 1, "n": 8, "k": 65792})
    source = generate(schedule, "kernel", PAIRED)
    (function,) = compiled([source.text])
    inputs = {"X": np.full(65792, 255, "uint8"), "W": np.full(65792 * 8, -128, "int8"),
              "S": np.ones(8, "float32")}  # fmt: skip
    assert (call(source, function, chain, inputs, {})["Y"] == -255.0 * 128 * 65792).all()


@needs_instruction
def test_two_products_of_one_operand_share_its_copy() -> None:
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
    source = generate(schedule, "kernel", PAIRED)
    assert source.text.count("_left = T.alloc_buffer") == 1
    check([(chain, source)])


def test_the_text(update_golden: bool) -> None:
    """Ragged rows, columns and depth, with a zero point."""
    chain = quantized({"m": 20, "n": 40, "k": 70}, zero="float32(Z[0])")
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 32, "k": 64})
    text = generate(schedule, "kernel", PAIRED).text
    path = GOLDEN / "tensorir" / "paired.py"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("cpu", "lanes", "instruction"),
                         [("haswell", 8, "vpmaddwd"), ("skylake-avx512", 16, "vpmaddwd"),
                          ("icelake-server", 16, "vpdpwssd")])  # fmt: skip
def test_wider_cpus_use_the_instruction_that_they_have(
    cpu: str, lanes: int, instruction: str
) -> None:
    """The CPU need not be at hand: LLVM adds products of pairs in one instruction where it can."""
    chain = quantized({"m": 16, "n": 64, "k": 64})
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 64, "k": 64})
    knobs = replace(PAIRED, lanes=lanes) if lanes == 8 else TensorirKnobs(8, 2, 16, paired=True)
    text = generate(schedule, "kernel", knobs).text
    function = prim_func(text).with_attr("global_symbol", "kernel")
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"})
    built = tvm.compile(tvm.IRModule({"kernel": function}), target=target)
    lines = built.mod.inspect_source("asm").splitlines()
    register = "zmm" if lanes == 16 else "ymm"
    assert any(instruction in line and register in line for line in lines)


def test_constants_are_packed_with_neighbours_side_by_side() -> None:
    weights = np.arange(5 * 6, dtype=np.int8).reshape(5, 6)
    packed = pack(weights, Panels((0,), 1, 4, paired=True)).reshape(2, 3, 4, 2)
    whole = np.zeros((6, 8), np.int8)
    whole[:5, :6] = weights
    for panel in range(2):
        for pair in range(3):
            for lane in range(4):
                here = whole[2 * pair : 2 * pair + 2, 4 * panel + lane]
                assert (packed[panel, pair, lane] == here).all()


def test_a_record_tells_how_constants_are_packed() -> None:
    chain = quantized({"m": 16, "n": 64, "k": 64})
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 64, "k": 64})
    source = generate(schedule, "kernel", PAIRED)
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    assert dict(source.packed)["W"].paired
    assert from_record(to_record(source), source.text, *same) == source
