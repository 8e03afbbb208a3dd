"""Products on the matrix unit: the text anywhere, its values where the CPU has Intel's AMX."""

from __future__ import annotations

import random
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tvm

from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.codegen.tensorir import TensorirSource, generate
from mcfuser.codegen.tensorir.build import MATRIX_FEATURES, compile_function
from mcfuser.devices.amx import FEATURES, matrix_unit
from mcfuser.expr import BOUNDS
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import parse
from mcfuser.space.schedule import Schedule
from tests.support.drawn_schedules import DRAWN, drawn, errors
from tests.support.paths import GOLDEN
from tests.support.schedules import build, schedules
from tests.support.tensorir_agree import WIDE, run

GOLDEN = GOLDEN / "tensorir"
MATRIX = TensorirKnobs(8, 2, 16, matrix=True)
MULTIPLIED = "llvm.x86.tdpbf16ps"
SEEDS = 2
"""TVM takes half a second to parse the text of each kernel."""
needs_unit = pytest.mark.skipif(not matrix_unit(), reason="this CPU has no AMX that may be used")


def square(n: int, **dtypes: str) -> Schedule:
    """C = A B, of n by n matrices in one tile."""
    tensors = {t: {"shape": s, "dtype": dtypes.get(t, "float32")}
               for t, s in (("A", ["m", "k"]), ("B", ["k", "n"]))}  # fmt: skip
    a, b = (f"float32({r})" if dtypes.get(r[0]) in BOUNDS else r for r in ("A[m, k]", "B[k, n]"))
    lines = [f"C[m, n] = sum[k] {a} * {b}"]
    chain = from_json({"axes": dict.fromkeys("mnk", n), "tensors": tensors, "operators": lines})
    return schedules(chain, parse("mnk"), dict.fromkeys("mnk", n))


def multiplied(a: np.ndarray, b: np.ndarray, lowering: TensorirKnobs = MATRIX) -> np.ndarray:
    schedule = square(len(a))
    return run(schedule, schedule.chain, lowering, {"A": a, "B": b})["C"].reshape(a.shape)


@pytest.mark.parametrize("name", ["attention", "gemm"])
def test_the_text(name: str, update_golden: bool) -> None:
    """Ragged rows, columns and depth; sums that begin in registers, and that go on."""
    chain = build(name, {"b": 2, "m": 100, "n": 70, "k": 40, "h": 48})
    tiles = {"m": 64, "n": 32, "k": 40, "h": 48}
    text = generate(schedules(chain, parse("mh.nk"), tiles), "kernel", MATRIX).text
    path = GOLDEN / f"{name}_matrix.py"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


@needs_unit
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedules_agree_with_the_chain(seed: int, request: pytest.FixtureRequest) -> None:
    rng = random.Random(seed)
    count = (request.config.getoption("--cases") or DRAWN * SEEDS) // SEEDS

    def make(kind: str, schedule: Schedule) -> TensorirSource | None:
        source = generate(schedule, "kernel", MATRIX)
        return source if MULTIPLIED in source.text else None

    for wrong, which in errors(rng, drawn(rng, count, make), seed):
        assert wrong < 1e-5, which


@needs_unit
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e15])
def test_six_products_of_pieces_are_as_accurate_as_float32(scale: float) -> None:
    """Each element beside the sum of magnitudes, of operands whose mantissas use all 24 bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)).astype("float32") for _ in range(2))
    a *= np.float32(scale)
    exact = a.astype("float64") @ b.astype("float64")
    magnitude = np.abs(a).astype("float64") @ np.abs(b).astype("float64")
    unit, vectors = (
        np.abs(multiplied(a, b, k).astype("float64") - exact) / magnitude for k in (MATRIX, WIDE)
    )
    assert unit.max() < 2e-7
    assert np.sqrt((unit**2).mean()) < np.sqrt((vectors**2).mean())


@needs_unit
def test_numbers_of_two_pieces_and_of_one_are_exact() -> None:
    """Whole numbers of 16 and of 8 bits: the sums of their products are float32's."""
    rng = np.random.default_rng(0)
    for most in (1 << 7, 1 << 11):
        a, b = (rng.integers(-most, most, (64, 64)).astype("float32") for _ in range(2))
        b = np.sign(b) * np.minimum(np.abs(b), 8)
        assert np.array_equal(multiplied(a, b), a @ b)


@needs_unit
@pytest.mark.parametrize(
    ("dtypes", "products"),
    [(("bfloat16",) * 2, 1), (("float16",) * 2, 4), (("bfloat16", "float32"), 3),
     (("uint8", "int8"), 1), (("int16", "int8"), 2), (("float32", "int8"), 3)],
)  # fmt: skip
def test_narrow_operands_have_fewer_pieces(dtypes: tuple[str, str], products: int) -> None:
    schedule = square(64, **dict(zip("AB", dtypes, strict=True)))
    assert generate(schedule, "kernel", MATRIX).text.count(MULTIPLIED) == 4 * products
    chain, rng = schedule.chain, np.random.default_rng(0)
    types = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32,
             "int8": np.int8, "uint8": np.uint8, "int16": np.int16}  # fmt: skip
    inputs = {}
    for n, d in zip("AB", dtypes, strict=True):
        values = rng.standard_normal((64, 64))
        if d in BOUNDS:
            values = rng.integers(*BOUNDS[d], (64, 64), endpoint=True)
        inputs[n] = values.astype(types[d])
    source = generate(schedule, "kernel", MATRIX)
    out = tvm.runtime.tensor(np.zeros(64 * 64, types[chain.tensor("C").dtype]))
    arguments = [tvm.runtime.tensor(inputs[n].reshape(-1)) for n in "AB"]
    compile_function(source.text, "kernel")(*arguments, out)
    exact = inputs["A"].astype("float64") @ inputs["B"].astype("float64")
    found = out.numpy().astype("float64").reshape(64, 64)
    assert np.linalg.norm(found - exact) < 1e-6 * np.linalg.norm(exact)


@needs_unit
def test_an_infinite_operand_makes_its_row_or_column_no_number_and_no_other() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype("float32") for _ in range(2))
    expected = np.isnan(a @ b)
    a[5, 7], b[9, 11], a[20, 3] = np.inf, -np.inf, np.nan
    expected[[5, 20]] = expected[:, 11] = True
    assert np.array_equal(np.isnan(multiplied(a, b)), expected)


@needs_unit
def test_the_largest_numbers_do_not_overflow_and_the_smallest_lose_2_to_minus_126() -> None:
    largest, smallest = np.finfo("float32").max, np.float32(2.0**-126)
    eye = np.eye(64, dtype="float32")
    assert np.array_equal(multiplied(np.full((64, 64), largest), eye), np.full((64, 64), largest))
    tiny = np.random.default_rng(0).uniform(0, 64, (64, 64)).astype("float32") * smallest
    assert np.abs(multiplied(tiny, eye) - tiny).max() <= 2 * smallest


@needs_unit
def test_a_process_that_may_not_use_the_tile_registers_is_told() -> None:
    """Asked for a component that there is none of, Linux refuses as where it has no AMX."""
    text = generate(square(32), "kernel", MATRIX).text
    assert text.count("T.int64(18))") == 1
    function = compile_function(text.replace("T.int64(18))", "T.int64(63))"), "kernel")
    arrays = [tvm.runtime.tensor(np.zeros(1024, "float32")) for _ in range(3)]
    with pytest.raises(RuntimeError, match="Linux does not let this process use them"):
        function(*arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_packed_constants_are_widened_before_they_are_split(dtype: str) -> None:
    """Their bits are those of a float32 then, which is what pieces are cut from."""
    chain = from_json({
        "axes": {"m": 16, "k": 32, "n": 40},
        "tensors": {"A": {"shape": ["m", "k"], "dtype": dtype},
                    "B": {"shape": ["k", "n"], "dtype": dtype, "constant": True}},
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    })  # fmt: skip
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 40, "k": 32})
    text = generate(schedule, "kernel", MATRIX).text
    assert MULTIPLIED in text
    tvm.script.from_source(text)


def test_siblings_share_the_pieces_of_what_they_both_read() -> None:
    document = {
        "axes": {"m": 64, "n": 64, "k": 64},
        "tensors": {t: {"shape": list(s)} for t, s in (("A", "mk"), ("B", "kn"), ("D", "kn"))},
        "operators": [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "E[m, n] = sum[k] A[m, k] * D[k, n]",
            "F[m, n] = C[m, n] * E[m, n]",
        ],
    }
    schedule = schedules(from_json(document), parse("mnk"), dict.fromkeys("mnk", 64))
    text = generate(schedule, "kernel", MATRIX).text
    assert text.count('"uint16")\n') == 1, "one operand's pieces"
    assert text.count(MULTIPLIED) == 2 * 4 * 6


@pytest.mark.parametrize("chain", [attention(2, 1, 64, 64, 64), gemm(1, 4, 64, 64, 64)])
def test_few_rows_are_computed_on_vectors(chain: Chain) -> None:
    schedule = schedules(chain, parse("mh.nk"), dict.fromkeys("mnkh", 64))
    assert generate(schedule, "kernel", MATRIX).text == generate(schedule, "kernel", WIDE).text


def test_llvm_is_told_of_the_same_features_that_a_device_is_asked_for() -> None:
    assert FEATURES == MATRIX_FEATURES


def test_the_default_uses_no_unit() -> None:
    assert not TensorirKnobs().matrix
    assert MULTIPLIED not in generate(square(64), "kernel", replace(MATRIX, matrix=False)).text
