"""Test cases: a chain with random inputs, and the results that a kernel must compute."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mcfuser.chain import Chain, flat_size
from mcfuser.expr import DISCRETE, Call, walk
from mcfuser.measure.agreement import disagreement
from mcfuser.measure.inputs import (
    DrawRange,
    DrawStyle,
    InputKind,
    draw_style,
    draw_values,
    input_kinds,
    positives,
)
from mcfuser.measure.rounding import allowed
from mcfuser.measure.sample import ChainSample, sample_chain
from mcfuser.space.reference import Array, as_dtype, decode, encode, evaluate, logical, typed

PIECE = 1 << 20
"""Random values that are drawn from one generator."""
CACHED = 1 << 17
"""Values that are checked together: they and a copy fit a core's cache."""
RANGES: tuple[DrawRange, ...] = ("positive", "share")
"""The ranges that inputs which must not be negative are drawn from: the first that suits the
chain."""


@dataclass(frozen=True)
class CaseData:
    """The arrays of a test case, by tensor.

    `data` are the inputs, flat, as their types store them. `expected` are the results of the
    reference at the sampled positions, `allowed` the errors that rounding may cause in them, in
    multiples of `Case.unit`.
    """

    data: Mapping[str, Array]
    expected: Mapping[str, Array]
    allowed: Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """A chain with inputs drawn from a `seed`, around `offsets` (by name).

    The reference computes the chain at as many positions as `budget` flops allow. A check allows
    relative errors of `unit`. `varied` inputs differ in sign and scale (mcfuser.measure.inputs); a
    `sign` of 1 or -1 is given to all of them.
    """

    chain: Chain
    seed: int
    offsets: Mapping[str, float]
    unit: float
    varied: bool = False
    sign: int | None = None
    budget: float = float("inf")

    @cached_property
    def sample(self) -> ChainSample:
        """The positions that the reference computes."""
        return sample_chain(self.chain, self.budget, self.seed)

    @cached_property
    def made(self) -> CaseData:
        """The arrays, drawn from the first of the RANGES for which every output is a number; if
        there is none, from the one with the fewest NaN."""
        ranges = RANGES if positives(self.chain) else RANGES[:1]
        best, most = None, -1
        for positive in ranges:
            arrays = self._made(positive)
            known = [~np.isnan(arrays.expected[n]) for n in self.chain.outputs]
            count = sum(int(np.count_nonzero(k)) for k in known)
            if count > most:
                best, most = arrays, count
            if all(k.all() for k in known):
                break
        assert best is not None
        return best

    def _made(self, positive: DrawRange) -> CaseData:
        wanted = input_kinds(self.chain, self.offsets, positive)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            data = {n: self._random(pool, i, wanted[n]) for i, n in enumerate(self.chain.inputs)}
        taken = self.sample.inputs({n: self._indexed(n, a) for n, a in data.items()})
        inputs = {n: decode(a, self.chain.tensor(n).dtype) for n, a in taken.items()}
        inputs = typed(self.sample.chain, inputs)  # once for both that need them so
        results = evaluate(self.sample.chain, inputs)
        return CaseData(data, results, allowed(self.sample.chain, inputs, results, self.unit))

    def _indexed(self, name: str, stored: Array) -> Array:
        """An input as the chain indexes it. One whose elements it has at several positions, as
        windows that overlap have, is converted before that, not once a position."""
        if math.prod(self.chain.shape(name)) > stored.size:
            dtype = self.chain.tensor(name).dtype
            stored = as_dtype(decode(stored, dtype), dtype)
        return logical(self.chain, name, stored)

    def _random(self, pool: Executor, number: int, kind: InputKind) -> Array:
        """One input, drawn in parallel, in pieces that have a generator each."""
        name = self.chain.inputs[number]
        values = stored_buffer(self.chain, name)
        how: DrawStyle = draw_style(
            np.random.default_rng((self.seed, number)), kind, self.varied, self.sign
        )

        def draw(first: int) -> None:
            part = values[first : first + PIECE]
            rng = np.random.default_rng((self.seed, number, first // PIECE))
            part[:] = encode(draw_values(rng, kind, len(part), how), kind.dtype)

        list(pool.map(draw, range(0, len(values), PIECE)))
        return values

    def error(self, name: str, found: Array) -> float | str:
        """The norm-wise relative error of an output, or a sentence that says how it is wrong.

        `found` has the shape that the chain gives it, in the bytes of its type.
        """
        dtype, made = self.chain.tensor(name).dtype, self.made
        wanted = made.expected[name]
        if (
            np.isfinite(wanted).all()
            and _representable(wanted, dtype)
            and not all_finite(found, dtype)
        ):
            return f"output '{name}' is not finite"
        part = decode(self.sample.output(name, found), dtype)
        overall = not self.varied and not _rounds(self.chain)
        error = disagreement(part, wanted, made.allowed[name], self.unit, overall)
        return error if isinstance(error, float) else f"output '{name}' is wrong: {error}"

    def worst(self, found: Mapping[str, Array]) -> float | str:
        """The largest error of the outputs, or a sentence that says how one of them is wrong.

        `found` are flat arrays, in the bytes of their types, by name.
        """
        most = 0.0
        for name in self.chain.outputs:
            error = self.error(name, logical(self.chain, name, found[name]))
            if isinstance(error, str):
                return error
            most = max(most, error)
        return most


def _rounds(chain: Chain) -> bool:
    """Whether a chain rounds to whole numbers: some elements differ by a whole step then, which is
    allowed of them, but not of all together."""
    return any(
        isinstance(e, Call) and e.op == "round" for o in chain.operators for e in walk(o.body)
    )


def _representable(values: Array, dtype: str) -> bool:
    """Whether no value is infinite in that type."""
    most = {"float16": 6e4, "bfloat16": 3e38}.get(dtype, 3.402824e38)
    return not values.size or float(np.abs(values).max()) < most


def stored_buffer(chain: Chain, name: str) -> Array:
    """An uninitialised flat array for a tensor, in the bytes of its type."""
    dtype = chain.tensor(name).dtype
    return np.empty(flat_size(chain, name), _HOST.get(dtype, dtype))


_HOST = {"bfloat16": "uint16"}


def all_finite(stored: Array, dtype: str) -> bool:
    """Whether no value of an array that `encode` made is infinite or NaN.

    Of a narrow type the bits are checked: those are not finite whose exponent has all bits set.
    """
    if dtype in DISCRETE:
        return True
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80}.get(dtype)
    if exponent is None:
        return bool(np.isfinite(stored).all())
    bits = stored.view(np.uint16).ravel()
    some = (bits[first : first + CACHED] for first in range(0, bits.size, CACHED))
    return all(bool((part & exponent).max() < exponent) for part in some)
