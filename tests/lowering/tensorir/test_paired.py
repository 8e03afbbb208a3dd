"""Which products are multiplied in pairs: the same facts for candidates and for one schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, from_json
from mcfuser.codegen.tensorir import generate
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.matrix import AMX
from mcfuser.lowering.tensorir.paired import pairs
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from tests.support.schedules import schedules

CPU = Device("cpu", "cpu", "some", 2, (("float32", 1e11),), 1e10, 1 << 20, 256)
SUM = "C[m, n] = sum[k, t] float32(X[m, k, t]) * float32(W[k, t, n])"
EXTENTS = {"m": 16, "n": 32, "k": 8, "t": 6}


def multiplied(*lines: str, extents: dict[str, int] = EXTENTS, **dtypes: str) -> Chain:
    tensors = {
        "X": {"shape": ["m", "k", "t"], "dtype": dtypes.get("X", "uint8")},
        "W": {"shape": ["k", "t", "n"], "dtype": dtypes.get("W", "int8"), "constant": True},
    }
    return from_json({"axes": extents, "tensors": tensors, "operators": list(lines or (SUM,))})


def paired(chain: Chain, **tiles: int) -> bool:
    """Whether the product is paired, as the candidate's facts and as its text say."""
    expression = parse("mn.kt")
    plan = Plan(program(chain), expression, frozenset())
    sizes = {a.name: chain.size(a.name) for a in chain.axes} | tiles
    (taken,) = pairs(plan, np.asarray([[sizes[a] for a in plan.axes]], np.int64), CPU)
    schedule = schedules(chain, expression, sizes)
    text = generate(schedule, "kernel", TensorirKnobs(6, 2, 8, paired=True)).text
    assert ("pmadd" in text) == taken
    return bool(taken)


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
    assert pairs(plan, np.asarray(tiles, np.int64), CPU).tolist() == [True, True, False, True]


def test_sums_of_a_tile_fit_into_32_bits() -> None:
    """Of 16-bit numbers by bytes, 511 products do: 32,768 x 128 x 511."""
    chain = multiplied(extents={"m": 1, "n": 8, "k": 64, "t": 16}, X="int16")
    assert paired(chain, k=31)
    assert not paired(chain, k=32)


def test_the_device_must_have_the_instruction() -> None:
    def some(device: Device) -> set[bool]:
        return {s.paired for s in KnobTable(TensorirKnobs, device).settings}

    assert some(CPU) == some(replace(CPU, bits=512)) == {False, True}
    assert some(replace(CPU, bits=128)) == {False}
    unit = replace(CPU, bits=512, matrix=AMX, peak=(*CPU.peak, ("matrix", 2e12)))
    every = KnobTable(TensorirKnobs, unit).settings
    assert not any(s.paired and (s.matrix or s.winograd) for s in every)
