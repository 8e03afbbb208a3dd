"""Which products are computed of dot products, and how long these are: the same facts for
candidates and for one schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json, products
from mcfuser.codegen.tensorir import generate
from mcfuser.device import Device
from mcfuser.lowering.tensorir.dots import (
    PAIR,
    QUAD,
    LeftBytes,
    dot_products,
    left_bytes,
    lies_in_bytes,
    longest,
    multiplies_whole,
)
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.matrix import AMX
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Plan, sizes_of
from mcfuser.space.program import program
from tests.support.schedules import schedules

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)
SUM = "C[m, n] = sum[k, t] float32(X[m, k, t]) * float32(W[k, t, n])"
EXTENTS = {"m": 16, "n": 32, "k": 8, "t": 6}
LONG = EXTENTS | {"t": 8}
KNOBS = {length: TensorirKnobs(6, 2, 8, dots=length) for length in (PAIR, QUAD)}


def multiplied(*lines: str, extents: dict[str, int] = EXTENTS, **dtypes: str) -> Chain:
    lines = lines or (SUM,)
    tensors = {
        "X": {"shape": ["m", "k", "t"], "dtype": dtypes.get("X", "uint8")},
        "W": {"shape": ["k", "t", "n"], "dtype": dtypes.get("W", "int8"), "constant": True},
        "Z": {"shape": [1], "dtype": dtypes.get("Z", dtypes.get("X", "uint8"))},
    }
    used = {n: t for n, t in tensors.items() if any(f"{n}[" in line for line in lines)}
    return from_json({"axes": extents, "tensors": used, "operators": list(lines)})


def dots(chain: Chain, most: int = PAIR, expression: str = "mn.kt", **tiles: int) -> int:
    """How long the dot products are of which the product is computed, at most, as the candidate's
    facts and as its text say."""
    parsed = parse(expression)
    plan = Plan(program(chain), parsed, frozenset())
    extents = {a.name: chain.size(a.name) for a in chain.axes} | tiles
    row = np.asarray([[extents[a] for a in plan.axes]], np.int64)
    ((*_, lengths),) = dot_products(plan, sizes_of(plan, row), most)
    length = int(lengths[0])
    device = CPU if most == PAIR else replace(CPU, vnni=True)
    assert multiplies_whole(plan, row, device).tolist() == [length > 0]
    text = generate(schedules(chain, parsed, extents), "kernel", KNOBS[most]).text
    assert ("pmadd" in text) == (length == PAIR) and ("vpdpbusd" in text) == (length == QUAD)
    return length


def paired(chain: Chain, **tiles: int) -> bool:
    """Whether the product is computed of pairs, where the CPU has no longer ones."""
    return dots(chain, **tiles) == PAIR


@pytest.mark.parametrize(
    ("lines", "dtypes"),
    [
        ((), {}),
        ((), {"X": "int8", "W": "int16"}),
        (("P[m, k, t] = float32(X[m, k, t]) - 126.0", SUM.replace("float32(X[m, k, t])",
                                                                    "P[m, k, t]")), {}),
        (("P[m, k, t] = min(max(round(X[m, k, t] * 0.37) + 4.0, 0.0), 255.0)",
          SUM.replace("float32(X[m, k, t])", "P[m, k, t]")), {"X": "float32"}),
    ],
    ids=["bytes", "int16", "zero point", "quantized as it comes"],
)  # fmt: skip
def test_small_whole_numbers_are_paired(lines: tuple[str, ...], dtypes: dict[str, str]) -> None:
    assert paired(multiplied(*lines, **dtypes))


@pytest.mark.parametrize(
    ("lines", "dtypes"),
    [
        ((), {"X": "float32"}),
        ((), {"W": "float32"}),
        (("P[m, k, t] = float32(X[m, k, t]) * 0.5", SUM.replace("float32(X[m, k, t])",
                                                                  "P[m, k, t]")), {}),
        (("P[m, k, t] = float32(X[m, k, t]) * 300.0", SUM.replace("float32(X[m, k, t])",
                                                                    "P[m, k, t]")), {}),
        (("P[m, k, t] = abs(float32(X[m, k, t]))", SUM.replace("float32(X[m, k, t])",
                                                                 "P[m, k, t]")), {"X": "int16"}),
        (("V[k, t, n] = float32(W[k, t, n]) * 2.0", SUM.replace("float32(W[k, t, n])",
                                                                  "V[k, t, n]")), {}),
        ((SUM.replace("float32(W", "float16(W"),), {"W": "int16"}),
        ((SUM + " where k <= m",), {}),
    ],
    ids=["reals", "real weights", "halves", "large", "32768", "made weights", "rounded", "domain"],
)  # fmt: skip
def test_others_are_not(lines: tuple[str, ...], dtypes: dict[str, str]) -> None:
    assert not paired(multiplied(*lines, **dtypes))


def test_pairs_are_neighbours_along_the_last_axis_of_the_depth() -> None:
    assert paired(multiplied(), k=3, t=2)
    assert not paired(multiplied(), t=3)
    assert not paired(multiplied(extents=EXTENTS | {"t": 5}))
    alone = SUM.replace(", t", "")
    tensors = {"X": {"shape": ["m", "k"], "dtype": "int8"},
               "W": {"shape": ["k", "n"], "dtype": "int8"}}  # fmt: skip
    chain = from_json({"axes": {"m": 16, "n": 32, "k": 7}, "tensors": tensors,
                       "operators": [alone]})  # fmt: skip
    plan = Plan(program(chain), parse("mn.k"), frozenset())
    tiles = [[{"m": 16, "n": 32, "k": k}[a] for a in plan.axes] for k in (7, 4, 3, 8)]
    found = multiplies_whole(plan, np.asarray(tiles, np.int64), CPU)
    assert found.tolist() == [True, True, False, True]


def test_sums_of_a_tile_fit_into_32_bits() -> None:
    """Of 16-bit numbers by bytes, 511 products do: 32,768 x 128 x 511."""
    chain = multiplied(extents={"m": 1, "n": 8, "k": 64, "t": 16}, X="int16")
    assert paired(chain, k=31)
    assert not paired(chain, k=32)


def of_left(left: str, **dtypes: str) -> Chain:
    """The product of elements that are written so, by weights."""
    lines = (f"P[m, k, t] = {left}", SUM.replace("float32(X[m, k, t])", "P[m, k, t]"))
    return multiplied(*lines, extents=LONG, **dtypes)


X = "float32(X[m, k, t])"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("left", [X, f"{X} - 100.0", f"{X} - float32(Z[0])"])
def test_bytes_are_multiplied_four_at_once(dtype: str, left: str) -> None:
    """Less any zero point of their type, though differences are up to 255 either way."""
    assert dots(of_left(left, X=dtype), QUAD) == QUAD
    assert dots(multiplied(extents=LONG, X=dtype), QUAD) == QUAD


@pytest.mark.parametrize(
    ("left", "dtypes"),
    [
        (X, {"W": "uint8"}),
        (X, {"X": "int16"}),
        (f"{X} - float32(Z[0])", {"Z": "int8"}),
        (f"{X} + float32(Z[0])", {}),
        (f"{X} - 256.0", {}),
        (f"{X} * 2.0", {}),
        (f"max(float32(X[m, k, t]) - float32(Z[0]), 0.0) - {X}", {}),
    ],
    ids=["weights", "16 bits", "another type", "added", "past a byte", "twice", "between"],
)
def test_what_needs_more_bits_is_multiplied_in_pairs(left: str, dtypes: dict[str, str]) -> None:
    assert dots(of_left(left, **dtypes), QUAD) == PAIR


def test_four_are_neighbours_in_every_tile() -> None:
    chain = multiplied(extents=LONG)
    assert [dots(chain, QUAD, t=t) for t in (8, 4, 2, 3)] == [QUAD, QUAD, PAIR, 0]
    assert dots(multiplied(), QUAD) == PAIR  # 6 along the last axis of the depth


def test_a_byte_has_a_least_number_and_a_zero_point() -> None:
    chain = of_left(f"{X} - float32(Z[0])", X="int8")
    made = chain.operator("P").body
    found = left_bytes(chain, made)
    assert found is not None and found.least == -128 and found.zero is not None
    assert found == LeftBytes(made.args[0], -128, made.args[1]) and not found.exact
    clipped = of_left(f"min(max(round({X} * 0.5), 3.0), 200.0)").operator("P").body
    assert left_bytes(chain, clipped) == LeftBytes(clipped, 0)
    assert LeftBytes(clipped, 0).exact
    for text in (f"min({X} * 0.5, 9.0)", f"round({X} * 3.0)", f"float16({X} * 3.0)"):
        assert left_bytes(chain, of_left(text).operator("P").body) is None


@pytest.mark.parametrize(
    ("shape", "left", "lies"),
    [
        (["m", "k", "t"], X, True),
        (["m", "k", "t"], f"{X} - float32(Z[0])", True),
        (["m", "t", "k"], X.replace("k, t", "t, k"), False),
        (["m", "k", "t"], f"min({X}, 9.0)", False),
    ],
    ids=["as it is", "less a zero point", "turned", "computed"],
)
def test_bytes_that_are_neighbours_in_memory_are_read_there(
    shape: list[str], left: str, lies: bool
) -> None:
    chain = of_left(left)
    tensors = {
        t.name: replace(t, shape=tuple(shape)) if t.name == "X" else t for t in chain.tensors
    }
    chain = replace(chain, tensors=tuple(tensors.values()))
    (made,) = products(chain)
    roles = made.product
    assert roles is not None and lies_in_bytes(chain, roles) == lies
    text = generate(schedules(chain, parse("mn.kt"), LONG), "kernel", KNOBS[QUAD]).text
    assert ("C_left" in text) == (not lies) and "P_tile" not in text
    assert "vpdpbusd" in text


def test_signed_bytes_are_copied() -> None:
    chain = of_left(X, X="int8")
    (made,) = products(chain)
    roles = made.product
    assert roles is not None and not lies_in_bytes(chain, roles)


def test_what_a_map_makes_is_not_read_by_others_as_floats() -> None:
    """Its tile is never in memory."""
    lines = (f"P[m, k, t] = {X} - 1.0", SUM.replace(X, "P[m, k, t]"),
             "R[m] = sum[k, t] P[m, k, t]", "E[m, n] = C[m, n] * R[m]")  # fmt: skip
    chain = multiplied(*lines, extents=LONG)
    text = generate(schedules(chain, parse("mnkt"), LONG), "kernel", KNOBS[QUAD]).text
    assert "P_tile" in text and "vpdpbusd" in text


def test_the_device_must_have_the_instruction() -> None:
    def some(device: Device) -> set[int]:
        return {s.dots for s in KnobTable(TensorirKnobs, device).settings}

    assert some(CPU) == some(replace(CPU, bits=512)) == {0, PAIR}
    assert some(replace(CPU, vnni=True)) == some(replace(CPU, bits=512, vnni=True)) == {0, QUAD}
    assert some(replace(CPU, bits=128)) == {0}
    assert [longest(replace(CPU, bits=b)) for b in (128, 256)] == [0, PAIR]
    unit = replace(CPU, bits=512, matrix=AMX, peak=(*CPU.peak, ("matrix", 2e12)), vnni=True)
    every = KnobTable(TensorirKnobs, unit).settings
    assert not any(s.dots and (s.matrix or s.winograd) for s in every)
