"""Kernels that multiply by integer weights, scaled in many ways, on both kinds of device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from mcfuser.chain import Chain, flat_size, from_json
from mcfuser.codegen import tensorir, triton
from mcfuser.devices.cpu import probe_cpu
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.unpacked import FEW
from mcfuser.space.expression import parse
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.numpy_triton import DTYPES
from tests.support.numpy_triton import run as run_blocks
from tests.support.schedules import schedules
from tests.support.tensorir_agree import error, run

KNOBS = [TensorirKnobs(4, 3, 8), TensorirKnobs(6, 2, 8)]
if probe_cpu().bits == 512:
    KNOBS += [TensorirKnobs(4, 3, 16), TensorirKnobs(8, 2, 16)]
ROWS, COLUMNS = (1, 3, 4, 7), 40
FOUR = "(float32(bit_and(shift_right(Q[k, t, n], T[s]), 15)) - {zero})"

CASES: dict[str, tuple[dict[str, str], Sequence[str]]] = {
    "four bits": (
        {"Q": "ktn:uint8", "T": "s:uint8", "S": "kn"},
        [f"W[k, s, t, n] = {FOUR.format(zero=8.0)} * S[k, n]",
         "Y[m, n] = sum[k, s, t] X[m, k, s, t] * W[k, s, t, n]"]),
    "four bits with zero points": (
        {"Q": "ktn:uint8", "T": "s:uint8", "S": "kn", "Z": "kn"},
        [f"W[k, s, t, n] = {FOUR.format(zero='Z[k, n]')} * S[k, n]",
         "Y[m, n] = sum[k, s, t] X[m, k, s, t] * W[k, s, t, n]"]),
    "blocks of eight bits": (
        {"Q": "kstn:int8", "S": "kn"},
        ["W[k, s, t, n] = float32(Q[k, s, t, n]) * S[k, n]",
         "Y[m, n] = sum[k, s, t] X[m, k, s, t] * W[k, s, t, n]"]),
    "sixteen bits of which rows are turned": (
        {"Q": "nkst:int16", "S": "n"},
        ["C[m, n] = sum[k, s, t] X[m, k, s, t] * float32(Q[n, k, s, t])",
         "Y[m, n] = C[m, n] * S[n]"]),
    "a gated pair": (
        {"Q": "ktn:uint8", "T": "s:uint8", "S": "kn", "V": "kstn:int8", "G": "n"},
        [f"W[k, s, t, n] = {FOUR.format(zero=8.0)} * S[k, n]",
         "C[m, n] = sum[k, s, t] X[m, k, s, t] * W[k, s, t, n]",
         "D[m, n] = sum[k, s, t] X[m, k, s, t] * float32(V[k, s, t, n])",
         "Y[m, n] = C[m, n] / (1.0 + exp(-C[m, n] * 0.01)) * D[m, n] * G[n]"]),
}  # fmt: skip


def made(case: str, rows: int) -> Chain:
    tensors, lines = CASES[case]
    described: dict[str, Any] = {"X": {"shape": list("mkst")}}
    for name, words in tensors.items():
        dims, _, dtype = words.partition(":")
        described[name] = {"shape": [*dims], "dtype": dtype or "float32", "constant": True}
    extents = {"m": rows, "n": COLUMNS, "k": 3, "s": 2, "t": 4}
    return from_json({"axes": extents, "tensors": described, "operators": [*lines]})


def drawn(c: Chain) -> dict[str, np.ndarray]:
    rng, arrays = np.random.default_rng(0), {}
    for name in c.inputs:
        dtype, size = c.tensor(name).dtype, flat_size(c, name)
        if name == "T":
            arrays[name] = np.asarray([0, 4], np.uint8)
        elif dtype == "float32":
            arrays[name] = rng.standard_normal(size).astype(np.float32)
        else:
            bounds = np.iinfo(dtype)
            arrays[name] = rng.integers(bounds.min, bounds.max + 1, size).astype(dtype)
    return arrays


def some(c: Chain, count: int) -> Iterator[Schedule]:
    random = Random(0)
    for _ in range(count):
        order = random.choice(["mnkst", "mn.kst", "nm.skt", "mnstk"])
        tiles = {
            "m": random.choice([1, 2, 4, 8]), "n": random.choice([8, 16, 24, 48]),
            "k": random.choice([1, 2, 3]), "s": random.choice([1, 2]), "t": random.choice([2, 4]),
        }  # fmt: skip
        try:
            yield schedules(c, parse(order), tiles)
        except Illegal:
            continue


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_for_cpus_multiply_by_what_integers_stand_for(case: str, rows: int) -> None:
    c, written = made(case, rows), set[bool]()
    flat = drawn(c)
    expected = evaluate(c, {n: logical(c, n, a) for n, a in flat.items()})
    for i, schedule in enumerate(some(c, 8)):
        knobs = KNOBS[i % len(KNOBS)]
        try:
            source = tensorir.generate(schedule, "kernel", knobs)
        except Illegal:
            continue
        assert error(run(schedule, c, knobs, flat), expected) < 1e-5, source.text
        written.add("W_tile" in source.text)
    if "W[" in str(c):  # the weights of few rows are never in memory, others are
        assert written == ({False} if rows <= FEW else {False, True})


@pytest.mark.parametrize("case", CASES)
def test_kernels_for_gpus_multiply_by_what_integers_stand_for(case: str) -> None:
    c, count = made(case, 5), 0
    flat = drawn(c)
    expected = evaluate(c, {n: logical(c, n, a) for n, a in flat.items()})
    for schedule in some(c, 6):
        try:
            source = triton.generate(schedule, "kernel")
        except Illegal:
            continue
        room = {n: np.zeros(flat_size(c, n), DTYPES[c.tensor(n).dtype]) for n in c.outputs}
        held = {**{n: a.copy() for n, a in flat.items()}, **room}
        run_blocks(source, held)
        found = {n: logical(c, n, held[n]) for n in c.outputs}
        assert error(found, expected) < 1e-5, source.text
        count += 1
    assert count > 2
