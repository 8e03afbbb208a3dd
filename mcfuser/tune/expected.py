"""The predicted time of a chain's best candidate, without a search."""

from __future__ import annotations

from mcfuser.backend import Backend
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.errors import ChainError
from mcfuser.space.candidates import candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.prune import Space, distinct, parted, prune, space
from mcfuser.tune.tuned import TuneOptions


def pruned(chain: Chain, device: Device, options: TuneOptions) -> tuple[Space, dict[str, int]]:
    """The pruned space of a chain, and the number of candidates before and after each rule.

    Plans with few blocks are there with a loop split into parts, too.
    """
    whole = space(chain, options.space, options.shifts)
    left, steps = prune(whole, device)
    sizes = {"space": whole.candidates} | {s.rule: s.candidates for s in steps}
    return parted(distinct(left), device), sizes


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
