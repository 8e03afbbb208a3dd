"""Candidates of GPU chains whose times are those of known constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import Chain, gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.measure.request import Measured
from mcfuser.model.fitted import predicted
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Floats
from mcfuser.tune.expected import pruned
from mcfuser.tune.key import key_here
from mcfuser.tune.tried import Tried, tried
from mcfuser.tune.tuned import Tuned, TuneOptions
from tests.support.kernels import tuned

DEVICE = CATALOGUE["nvidia/h200"]
CHAINS = (
    gemm(1, 128, 128, 32, 32, "float16"),
    gemm(2, 128, 256, 32, 64, "float16"),
    gemm(1, 256, 128, 64, 32, "float16"),
    gemm(4, 64, 128, 32, 32, "float16"),
    gemm(1, 64, 256, 64, 64, "float16"),
)
COUNT = 60

Kept = tuple[Tuned, Sequence[Tried]]


def true_constants(seed: int = 0, spread: float = 1.0) -> dict[str, float]:
    """Those of the catalogue, each multiplied by a factor of its own."""
    rng = np.random.default_rng(seed)
    return {n: c * float(np.exp(rng.uniform(-spread, spread))) for n, c in DEVICE.costs}


@cache
def every(chain: Chain) -> Candidates:
    space, _ = pruned(chain, DEVICE, TuneOptions(), CUDA)
    return candidates(space, KnobTable(CUDA.knobs, DEVICE), CUDA.feasible)


def times(chain: Chain, constants: Mapping[str, float]) -> Floats:
    """The seconds that constants give each candidate of a chain."""
    return _times(chain, tuple(constants.items()))


@cache
def _times(chain: Chain, given: tuple[tuple[str, float], ...]) -> Floats:
    found, constants = every(chain), dict(given)
    return found.estimates(
        found.rows, lambda p, t, s, d: predicted(*CUDA.events(p, t, s, d), constants)
    )


def kept(chain: Chain, constants: Mapping[str, float], count: int = COUNT) -> Kept:
    """A kernel, and some of its candidates, the fastest among them, with times by constants."""
    found, seconds = every(chain), times(chain, constants)
    rng = np.random.default_rng(1)
    near = np.argsort(seconds)[: 4 * count]
    rows = rng.permutation(near)[:count]
    results = {found.candidate(i): Measured(float(seconds[i]), 1e-4) for i in rows}
    key = key_here(chain.key, DEVICE, "mcfuser", True, CUDA)
    kernel = replace(tuned(device=DEVICE.name), key=key.digest, chain=chain, made=key)
    return kernel, tried(chain, found, True, results, CUDA.estimate)


def all_kept(constants: Mapping[str, float], count: int = COUNT) -> list[Kept]:
    return [kept(chain, constants, count) for chain in CHAINS]
