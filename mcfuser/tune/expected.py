"""The predicted time of a chain's best candidate, without a search."""

from __future__ import annotations

from collections.abc import Mapping
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
    try:
        left, _ = pruned(chain, device, options)
    except ChainError:
        return float("inf")  # one kernel cannot compute it
    table = KnobTable(backend.knobs, device)
    rows = candidates(left, table, backend.feasible, measured)
    if not len(rows):
        return float("inf")
    return float(rows.estimates(rows.rows, backend.estimate).min())
