"""What two chains compute of the same arrays."""

from __future__ import annotations

import numpy as np

from mcfuser.chain import Chain, flat_size
from mcfuser.space.reference import evaluate, logical


def check_arrays(one: Chain, other: Chain, seed: int = 0) -> None:
    """Both chains have the same inputs and outputs, and compute the same elements of the arrays of
    their outputs."""
    assert one.inputs == other.inputs and one.outputs == other.outputs
    rng, results = np.random.default_rng(seed), []
    memory = {n: rng.standard_normal(flat_size(one, n)) for n in one.inputs}
    for each in (one, other):
        found = evaluate(each, {n: logical(each, n, memory[n]) for n in each.inputs})
        results.append({n: _stored(each, n, found[n]) for n in each.outputs})
    for name, expected in results[0].items():
        np.testing.assert_array_equal(np.isnan(results[1][name]), np.isnan(expected))
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-9, atol=1e-9)


def _stored(c: Chain, name: str, values: np.ndarray) -> np.ndarray:
    """An output's array, NaN where no element of it lies."""
    flat = np.full(flat_size(c, name), np.nan)
    at = logical(c, name, np.arange(len(flat)))
    flat[at.ravel()] = values.ravel()
    return flat
