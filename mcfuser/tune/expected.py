"""The candidates of a chain with the times that the model predicts for them, before any search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType

from mcfuser.backend import Backend
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.errors import ChainError
from mcfuser.space.candidates import (
    Candidates,
    Estimate,
    Tables,
    candidates,
    least,
    looked_at,
    promising,
)
from mcfuser.space.knobs import KnobTable, declared
from mcfuser.space.plan import Floats
from mcfuser.space.prune import Space, SpaceKind, distinct, parted, prune, space
from mcfuser.tune.listers import LeastRequest, least_times
from mcfuser.tune.tuned import TuneOptions

PRICED = 1024
"""Predicted times that are kept: a model's chains are priced before they are tuned."""
SPACES = 64
"""Spaces that are kept: a model's chains and their pieces are priced first, and searched then. They
took 20 MB of a network of 60."""
LISTED = 64
"""Spaces whose candidates are kept as rows, with their times."""
PROMISING = 512
"""Spaces of which it is kept which tiles are promising: chains are priced first and searched or
chosen for then, and of a model with 165 distinct ones that took the most time of either."""


def pruned(
    chain: Chain, device: Device, options: TuneOptions, backend: Backend
) -> tuple[Space, Mapping[str, int]]:
    """The pruned space of a chain as its back end tiles it, and the number of candidates before and
    after each rule.

    Plans with few blocks are there with a loop split into parts, too.
    """
    return _pruned(chain, device, options.space, options.shifts, backend)


@lru_cache(SPACES)
def _pruned(
    chain: Chain, device: Device, kind: SpaceKind, shifts: bool, backend: Backend
) -> tuple[Space, Mapping[str, int]]:
    whole = space(backend.tiled(chain, device), kind, shifts, backend.lines, backend.walks)
    left, steps = prune(whole, device)
    sizes = {"space": whole.candidates} | {s.rule: s.candidates for s in steps}
    return parted(distinct(left), device), MappingProxyType(sizes)


def listed(
    chain: Chain, device: Device, options: TuneOptions, backend: Backend, measured: bool = True
) -> Candidates:
    """The candidates of a chain that are searched, of a large space the promising ones, without
    those that must not be used without a measurement unless they can be `measured`. Raises
    ChainError where one kernel cannot compute the chain."""
    kind, shifts = options.space, options.shifts
    return _listed(chain, device, kind, shifts, backend, measured or _is_free(backend))


def _is_free(backend: Backend) -> bool:
    """Whether every value of a back end's knobs may be chosen without a measurement."""
    return not any(k.measured for k in declared(backend.knobs))


def all_candidates(
    chain: Chain, device: Device, options: TuneOptions, backend: Backend
) -> Candidates:
    """All candidates of a chain, among them those that an earlier search has kept. Raises as
    `listed` does."""
    return _every(chain, device, options.space, options.shifts, backend)


@lru_cache(LISTED)
def _every(
    chain: Chain, device: Device, kind: SpaceKind, shifts: bool, backend: Backend
) -> Candidates:
    left, _ = _pruned(chain, device, kind, shifts, backend)
    return candidates(left, KnobTable(backend.knobs, device), backend.feasible)


@lru_cache(LISTED)
def _listed(
    chain: Chain, device: Device, kind: SpaceKind, shifts: bool, backend: Backend, measured: bool
) -> Candidates:
    left = _promising(chain, device, kind, shifts, backend)
    if left is None and measured:
        return _every(chain, device, kind, shifts, backend)
    whole = left or _pruned(chain, device, kind, shifts, backend)[0]
    return candidates(whole, KnobTable(backend.knobs, device), backend.feasible, measured)


@lru_cache(PROMISING)
def _promising(
    chain: Chain, device: Device, kind: SpaceKind, shifts: bool, backend: Backend
) -> Space | None:
    """The part of a chain's space that is listed, None if that is all of it."""
    whole, _ = _pruned(chain, device, kind, shifts, backend)
    table = KnobTable(backend.knobs, device)
    tables = _looked_at(chain, device, kind, shifts, backend)
    if tables is None:
        return None
    request = LeastRequest(chain, device, kind, shifts)
    here = partial(least_times_here, request, backend)
    left = promising(whole, table, tables, least_times(request, len(tables), here))
    return left if left is not whole else None


def least_times_here(request: LeastRequest, backend: Backend, plans: Sequence[int]) -> list[Floats]:
    """The least times [tiles] of some of the plans of a chain's space that are looked at, by their
    numbers, computed by this process."""
    tables = _looked_at(request.chain, request.device, request.space, request.shifts, backend)
    table = KnobTable(backend.knobs, request.device, plain=True)
    assert tables is not None
    return [least(*tables[i], table, backend.feasible, backend.estimate) for i in plans]


@lru_cache(1)
def _looked_at(
    chain: Chain, device: Device, kind: SpaceKind, shifts: bool, backend: Backend
) -> Tables | None:
    whole, _ = _pruned(chain, device, kind, shifts, backend)
    return looked_at(whole, KnobTable(backend.knobs, device))


@lru_cache(LISTED)
def estimated(found: Candidates, estimate: Estimate) -> Floats:
    """The estimated seconds of all candidates, not to be written to."""
    seconds = found.estimates(found.rows, estimate)
    seconds.flags.writeable = False
    return seconds


def expected(
    chain: Chain, device: Device, options: TuneOptions, backend: Backend, measured: bool = True
) -> float:
    """The seconds that the model predicts for the best candidate; infinity if none is legal.

    Candidates that must not be used without a measurement count only where they can be `measured`.
    """
    return _expected(
        _Keyed(chain.key, chain), device, options.space, options.shifts, backend, measured
    )


@dataclass(frozen=True)
class _Keyed:
    """A chain, equal to every other one that differs in names only."""

    key: str
    chain: Chain = field(compare=False)


@lru_cache(PRICED)
def _expected(
    keyed: _Keyed, device: Device, kind: SpaceKind, shifts: bool, backend: Backend, measured: bool
) -> float:
    try:
        every = measured or _is_free(backend)
        found = _listed(keyed.chain, device, kind, shifts, backend, every)
    except ChainError:
        return float("inf")  # one kernel cannot compute it
    return float(estimated(found, backend.estimate).min()) if len(found) else float("inf")
