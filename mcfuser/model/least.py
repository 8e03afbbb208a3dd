"""The least time that kernels run one after the other can take: no schedule is faster."""

from __future__ import annotations

from collections.abc import Sequence

from mcfuser.chain import Chain, flops, nbytes
from mcfuser.device import Device
from mcfuser.expr import reads

NEARER = 4.0
"""How much faster than its memory a device's last cache is, at most."""


def least(chains: Sequence[Chain], device: Device) -> float:
    """Seconds that these kernels take together at least: each writes its outputs and reads what no
    domain may spare it, and what the cache cannot hold comes from memory; or computes its products
    at the peak. 0 where the device's cache is not known."""
    return sum(_alone(chain, device) for chain in chains) if device.cache else 0.0


def _alone(chain: Chain, device: Device) -> float:
    moved = [nbytes(chain, t) for t in (*chain.outputs, *_read_whole(chain))]
    far = sum(max(0, n - device.cache) for n in moved)
    traffic = (far + (sum(moved) - far) / NEARER) / device.bandwidth
    if any(o.domain is not None for o in chain.operators):
        return traffic
    types = {chain.tensor(t).dtype for t in chain.inputs}
    return max(traffic, flops(chain) / max(device.throughput(d) for d in types))


def _read_whole(chain: Chain) -> set[str]:
    """Inputs of which an operator without a domain reads every element."""
    found = set()
    for o in chain.operators:
        for r in reads(o.body) if o.domain is None else ():
            plain = {i.plain for i in r.indices}
            if r.tensor in chain.inputs and len(plain) == len(r.indices) and None not in plain:
                found.add(r.tensor)
    return found
