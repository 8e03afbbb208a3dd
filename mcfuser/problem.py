"""A chain to be computed on a GPU: random inputs, and how far outputs are from float64's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser import gpu as gpus
from mcfuser.chain import Chain
from mcfuser.codegen.tensorir import flat_size
from mcfuser.gpu import Gpu
from mcfuser.sample import Sample, divisors, sample
from mcfuser.space.reference import evaluate, logical

Array = NDArray[Any]

BUDGET = 3e8
"""Flops of the reference that candidates are checked against: some tenths of a second."""
WHOLE = 8e9
"""The same for finalists: whole tensors, but for the longest sequences."""
PIECE = 1 << 20
"""Random values that one generator draws."""
CACHED = 1 << 17
"""Values that are looked at together: what a core's cache holds, and a copy of it."""


@dataclass(frozen=True)
class Problem:
    """A chain with random inputs, on the host and on the GPU, and what it should compute."""

    gpu: Gpu
    chain: Chain
    seed: int
    whole: bool
    offsets: Mapping[str, float]
    lock: Lock = field(default_factory=Lock)

    def prepare(self) -> None:
        """Draws the inputs and computes what is expected; by one thread, others wait for it."""
        with self.lock:
            _ = self.data, self.sample, self.expected

    @cached_property
    def data(self) -> dict[str, Array]:
        """The inputs' values as their types store them, flat."""
        positive = divisors(self.chain)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return {n: self._random(pool, i, n in positive)
                    for i, n in enumerate(self.chain.inputs)}  # fmt: skip

    def _random(self, pool: Executor, number: int, positive: bool) -> Array:
        """Draws one input, in pieces with a generator each: long ones take seconds otherwise."""
        name = self.chain.inputs[number]
        dtype, found = self.chain.tensor(name).dtype, self._room(name)

        def draw(first: int) -> None:
            part = found[first : first + PIECE]
            rng = np.random.default_rng((self.seed, number, first // PIECE))
            values = drawn(rng, dtype, len(part), self.offsets.get(name, 0.0))
            if positive:
                values = np.abs(values) + 1
            part[:] = encode(values, dtype)

        list(pool.map(draw, range(0, len(found), PIECE)))
        return found

    @cached_property
    def buffers(self) -> dict[str, Any]:
        return {n: gpus.upload(self.gpu, a) for n, a in self.data.items()}

    def release(self) -> None:
        """Leaves the GPU's memory to others until the inputs are needed there again."""
        self.__dict__.pop("buffers", None)

    @cached_property
    def sample(self) -> Sample:
        return sample(self.chain, WHOLE if self.whole else BUDGET, self.seed)

    @cached_property
    def expected(self) -> dict[str, Array]:
        known = {n: logical(self.chain, n, a) for n, a in self.data.items()}
        taken = self.sample.inputs(known).items()
        return evaluate(self.sample.chain, {n: self._decoded(n, a) for n, a in taken})

    def _decoded(self, name: str, stored: Array) -> Array:
        """The values; what a sample takes beside the inputs is stored as it is."""
        return decode(stored, self.chain.tensor(name).dtype) if name in self.data else stored

    @cached_property
    def host(self) -> dict[str, Array]:
        """Where outputs are copied to, in the type's bytes; taken once, for they may be long."""
        return {n: gpus.pinned(self._room(n)) for n in self.chain.outputs}

    def _room(self, name: str) -> Array:
        dtype = self.chain.tensor(name).dtype
        return np.empty(flat_size(self.chain, name), _HOST.get(dtype, dtype))

    def error(self, outputs: Mapping[str, Any], limit: float) -> float | str:
        """The largest norm-wise relative error of the outputs; or what is wrong with them."""
        worst = 0.0
        for name, buffer in outputs.items():
            dtype = self.chain.tensor(name).dtype
            found = logical(self.chain, name, gpus.download(self.gpu, buffer, self.host[name]))
            if not finite(found, dtype):
                return f"output '{name}' is not finite"
            part = decode(self.sample.output(name, found), dtype)
            wanted = self.expected[name]
            norm = float(np.linalg.norm(wanted)) or 1.0
            worst = max(worst, float(np.linalg.norm(part - wanted)) / norm)
        return worst if worst <= limit else f"its error is {worst:.1e}, more than {limit:.0e}"


# --- values as types store them -------------------------------------------------------------

_HOST = {"bfloat16": "uint16"}


def drawn(rng: np.random.Generator, dtype: str, size: int, offset: float) -> Array:
    """Random values: normal ones of deviation one around an offset, of integers zeros and ones."""
    if dtype in ("int32", "int64", "bool"):
        return rng.integers(0, 2, size).astype(dtype)
    return rng.standard_normal(size, np.float32) + np.float32(offset)


def encode(values: Array, dtype: str) -> Array:
    """Values in a type's bytes; bfloat16, which numpy lacks, rounded to nearest even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def decode(stored: Array, dtype: str) -> Array:
    """The values that `encode` stored."""
    if dtype != "bfloat16":
        return stored
    return (stored.astype(np.uint32) << 16).view(np.float32)


def finite(stored: Array, dtype: str) -> bool:
    """No value that `encode` stored is infinite or none: not every bit of an exponent is set."""
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80}.get(dtype)
    if exponent is None:
        return bool(np.isfinite(stored).all())
    bits = stored.view(np.uint16).ravel()
    some = (bits[first : first + CACHED] for first in range(0, bits.size, CACHED))
    return all(bool((part & exponent).max() < exponent) for part in some)
