"""What a kernel should leave in memory, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcfuser.chain import TF32, Chain, fixed
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.address import reach
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.interpret import interpret
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from tests.support.numpy_triton import DTYPES, run

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
ROUNDED = 2e-3
"""The tolerance where what is multiplied is rounded to TF32."""


def memory_of(chain: Chain, source: TritonSource, seed: int) -> dict[str, np.ndarray]:
    """A flat array for each parameter: inputs random, outputs poisoned. Extents are numbers."""
    rng = np.random.default_rng(seed)
    memory = {}
    for name in source.parameters:
        tensor = chain.tensor(name)
        size = reach(chain, tensor) + 1
        values = rng.standard_normal(size) if name in chain.inputs else np.full(size, np.nan)
        memory[name] = values.astype(DTYPES[tensor.dtype])
    return memory


def agree(
    schedule: Schedule,
    plain: Chain,
    seed: int = 0,
    lowering: TritonKnobs = TritonKnobs(),  # noqa: B008 - frozen
    extents: Mapping[str, int] | None = None,
) -> TritonSource:
    """The kernels, run block by block, give what the chain means in float64."""
    source = generate(schedule, "kernel", lowering)
    chain = fixed(plain, extents) if extents else plain
    memory = memory_of(chain, source, seed)
    expected = evaluate(chain, {n: logical(chain, n, memory[n]) for n in chain.inputs})
    run(source, memory, extents)
    for name in chain.outputs:
        wrong = error(chain, name, memory, expected)
        passes = ROUNDED if lowering.dot == TF32 else TOLERANCE[chain.tensor(name).dtype]
        assert wrong < passes, f"{name}: {wrong}\n{source.text}"
    return source


def interpreted_tiles(
    schedule: Schedule, chain: Chain, memory: Mapping[str, np.ndarray], extents: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """What the oracle makes of the same inputs, tile by tile."""
    inputs = {n: logical(chain, n, memory[n]).astype(np.float64) for n in chain.inputs}
    found, _ = interpret(schedule.at(extents), inputs)
    return found


def error(
    chain: Chain,
    name: str,
    memory: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> float:
    """How far an output is from what is expected, by norm; infinite where only one is no number."""
    found = np.asarray(logical(chain, name, memory[name]), np.float64)
    known = np.isfinite(expected[name])
    if not np.array_equal(known, np.isfinite(found)):
        return float("inf")
    size = np.linalg.norm(expected[name][known])
    return float(np.linalg.norm((found - expected[name])[known]) / size) if size else 0.0
