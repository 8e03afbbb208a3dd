"""The least time that kernels run one after the other can take: no schedule is faster."""

from __future__ import annotations

from collections.abc import Sequence

from mcfuser.chain import Chain, flops, nbytes
from mcfuser.device import Device
from mcfuser.expr import Call, Cast, Expr, walk

NEARER = 4.0
"""How much faster than its memory a device's last cache is, at most."""


def least(chains: Sequence[Chain], device: Device) -> float:
    """The least seconds that these kernels take together, 0 where the device's cache is not known.

    Each kernel writes its outputs and reads every input that no domain may exclude in part; bytes
    that the cache cannot hold come from memory. Where this takes longer, its products run at the
    peak rate.
    """
    return sum(_alone(chain, device) for chain in chains) if device.cache else 0.0


def _alone(chain: Chain, device: Device) -> float:
    moved = [nbytes(chain, t) for t in (*chain.outputs, *_read_whole(chain))]
    uncached = sum(max(0, n - device.cache) for n in moved)
    traffic = (uncached + (sum(moved) - uncached) / NEARER) / device.bandwidth
    if any(o.domain is not None for o in chain.operators):
        return traffic
    return max(traffic, flops(chain) / max(device.throughput(d) for d in dtypes(chain)))


def dtypes(chain: Chain) -> set[str]:
    """The types in which products may take their operands."""
    casts = {e.dtype for o in chain.operators for e in walk(o.body) if isinstance(e, Cast)}
    return casts | {t.dtype for t in chain.tensors}


def _read_whole(chain: Chain) -> set[str]:
    """Inputs of which an operator without a domain reads every element."""
    inputs = set()
    for o in chain.operators:
        for r in o.reads if o.domain is None and not _chooses(o.body) else ():
            axes = [i.plain for i in r.indices if i.plain is not None]
            extents = tuple(chain.size(a) for a in axes)
            if r.tensor in chain.inputs and len(set(axes)) == len(r.indices):
                inputs |= {r.tensor} if extents == chain.shape(r.tensor) else set()
    return inputs


def _chooses(e: Expr) -> bool:
    """A selection may leave what it reads unread."""
    return any(isinstance(x, Call) and x.op == "select" for x in walk(e))
