"""Products of float32 operands on the tensor cores: where they may be, and what they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import TF32, Chain, from_json
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.codegen.triton import generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.instructions import multiplies_tf32
from mcfuser.lowering.triton.precision import PRECISIONS, THREADS
from mcfuser.model.fitted import lowered
from mcfuser.space.candidates import Candidates
from mcfuser.space.prune import distinct, prune, space
from tests.support.gpu_candidates import every, settings, times

H200 = CATALOGUE["nvidia/h200"]
PARTS = [name for name in PRECISIONS if name != THREADS]


def linear(rows: int = 512, dtype: str = "float32", deep: bool = True) -> Chain:
    return from_json({
        "name": "linear",
        "axes": {"m": rows, "n": 768, "k": 256},
        "tensors": {
            "A": {"shape": ["m", "k"], "dtype": dtype},
            "B": {"shape": ["n", "k"] if deep else ["k", "n"], "dtype": dtype, "constant": True},
            "C": {"shape": ["m", "n"], "dtype": dtype},
        },
        "operators": [f"C[m, n] = sum[k] A[m, k] * B[{'n, k' if deep else 'k, n'}]"],
    })  # fmt: skip


def found(chain: Chain, device: str = "nvidia/h200") -> Candidates:
    known = CATALOGUE[device]
    return every(distinct(prune(space(chain), known)[0]), known)


def test_tensor_cores_multiply_parts_since_ampere() -> None:
    assert [multiplies_tf32(a) for a in ("sm_75", "sm_80", "sm_90", "sm_90a", "sm_120")] == [
        False, True, True, True, True
    ]  # fmt: skip


def test_candidates_make_parts_of_float32_and_of_nothing_else() -> None:
    assert set(settings(found(linear()), "dot")) == {THREADS, "tf32x3", "bf16x6"}
    assert set(settings(found(linear(dtype="float16")), "dot")) == {THREADS}


def test_only_a_chain_that_allows_it_is_rounded() -> None:
    rounded = found(replace(linear(), precision="tf32"))
    assert set(settings(rounded, "dot")) == set(PRECISIONS)


@pytest.mark.thorough
@pytest.mark.parametrize("dot", PARTS)
def test_estimates_of_parts_agree_with_the_compiler(dot: str) -> None:
    """Shared memory but for the barriers' bytes, and registers at least: without those for parts
    they would be a third of what is used."""
    chain = replace(linear(), precision="tf32")
    all_of_them = found(chain)
    alike = np.flatnonzero(settings(all_of_them, "dot") == dot)
    chosen = [all_of_them.candidate(i) for i in np.random.default_rng(1).permutation(alike)[:6]]
    sources, near = [], 0
    for c in chosen:
        plan, tiles = all_of_them.plan(c)
        sources.append(generate(plan.schedule(tiles), "kernel", all_of_them.settings(c)))
    with Compilers(2) as compilers:
        for i, binary in compilers.compile(sources, "sm_90"):
            assert isinstance(binary, Binary)
            plan, tiles = all_of_them.plan(chosen[i])
            asked = all_of_them.settings(chosen[i])
            made = lowered(
                plan, np.asarray([[tiles[a] for a in plan.axes]]), np.asarray([asked.warps]),
                np.asarray([asked.stages]), np.zeros(1, bool), H200, np.asarray([asked.tma]),
                np.asarray([asked.dot]),
            )  # fmt: skip
            near += abs(made.shared[0] - binary.shared) <= 0.1 * binary.shared
            used = binary.registers + binary.spills / 4
            assert used <= 1.5 * made.registers[0], (chosen[i], asked)
    assert near >= 4


def test_large_products_are_expected_to_be_faster_on_the_tensor_cores() -> None:
    """On an H200 three TF32 products took 0.61 of the time of float32 ones here, and one rounded
    product 0.34 (512 x 3,072 x 768; docs/gpu.md)."""
    best = {}
    for deep, dots in ((False, (THREADS,)), (True, PARTS)):
        all_of_them = found(replace(linear(2048, deep=deep), precision="tf32"))
        seconds, dot = times(all_of_them), settings(all_of_them, "dot")
        best |= {name: seconds[dot == name].min() for name in dots}
    assert best[TF32] < 0.5 * best[THREADS] and best[TF32] < best["tf32x3"] < 0.75 * best[THREADS]


def test_a_right_operand_across_the_depth_is_turned() -> None:
    """So its parts are expected to take longer, and threads to take less time than where their
    columns are far apart."""
    along, across = found(linear()), found(linear(deep=False))
    for name, faster, slower in (("tf32x3", along, across), (THREADS, across, along)):
        first, second = (times(c)[settings(c, "dot") == name].min() for c in (faster, slower))
        assert first < second, name
