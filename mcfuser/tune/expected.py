"""What the model expects of a chain's best candidate, without a search."""

from __future__ import annotations

from functools import partial

from mcfuser.backends.lowerings import every, predict
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.errors import ChainError
from mcfuser.model import roofline
from mcfuser.space.prune import Space, distinct, parted, prune, space
from mcfuser.tune.tuned import Options


def pruned(chain: Chain, device: Device, options: Options) -> tuple[Space, dict[str, int]]:
    """The pruned space of a chain, loops over few blocks in parts, and its size rule by rule."""
    whole = space(chain, options.space, options.shifts)
    left, steps = prune(whole, device)
    sizes = {"space": whole.candidates} | {s.rule: s.candidates for s in steps}
    return parted(distinct(left), device), sizes


def foreseen(chain: Chain, device: Device, options: Options, measured: bool = True) -> float:
    """Seconds; infinity where no candidate is legal. Some candidates are only for where they can be
    `measured`."""
    try:
        found, _ = pruned(chain, device, options)
    except ChainError:
        return float("inf")  # one kernel cannot compute it
    if device.kind == "cpu":
        times = [roofline.estimate(plan, tiles, device) for plan, tiles in found.tables or ()]
        return min((float(t.min()) for t in times if len(t)), default=float("inf"))
    rows = every(found, device, groups=measured)
    if not len(rows):
        return float("inf")
    return float(rows.each(rows.rows, partial(predict, device)).min())
