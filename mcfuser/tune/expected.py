"""The predicted time of a chain's best candidate, without a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from mcfuser.backend import Backend
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.errors import ChainError
from mcfuser.space.candidates import candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.prune import Space, SpaceKind, distinct, parted, prune, space
from mcfuser.tune.tuned import TuneOptions

PRICED = 1024
"""Predicted times that are kept: a model's chains are priced before they are tuned."""
SPACES = 8
"""Spaces that are kept: a chain's and its pieces', which are priced first and searched then."""


def pruned(chain: Chain, device: Device, options: TuneOptions) -> tuple[Space, Mapping[str, int]]:
    """The pruned space of a chain, and the number of candidates before and after each rule.

    Plans with few blocks are there with a loop split into parts, too.
    """
    return _pruned(chain, device, options.space, options.shifts)


@lru_cache(SPACES)
def _pruned(
    chain: Chain, device: Device, kind: SpaceKind, shifts: bool
) -> tuple[Space, Mapping[str, int]]:
    whole = space(chain, kind, shifts)
    left, steps = prune(whole, device)
    sizes = {"space": whole.candidates} | {s.rule: s.candidates for s in steps}
    return parted(distinct(left), device), MappingProxyType(sizes)


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
        left, _ = _pruned(keyed.chain, device, kind, shifts)
    except ChainError:
        return float("inf")  # one kernel cannot compute it
    table = KnobTable(backend.knobs, device)
    rows = candidates(left, table, backend.feasible, measured)
    if not len(rows):
        return float("inf")
    return float(rows.estimates(rows.rows, backend.estimate).min())
