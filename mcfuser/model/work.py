"""What a chain computes and moves, and the device's rates for it: its place under the roofline."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from mcfuser.chain import Chain, nbytes
from mcfuser.chain.values import Operator
from mcfuser.device import Device
from mcfuser.expr import Call, walk
from mcfuser.lowering.tensorir.matrix import PIECES, pairs
from mcfuser.model.least import dtypes


@dataclass(frozen=True, slots=True)
class ChainWork:
    """The arithmetic operations of a chain, and the bytes of its inputs and outputs, each moved
    once; and the most operations and bytes that the device does in a second.

    Positions that a domain leaves out are counted as the others are.
    """

    operations: int
    bytes: int
    peak: float
    bandwidth: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def chain_work(chain: Chain, device: Device) -> ChainWork:
    """The work of a chain on a device."""
    return ChainWork(
        sum(_operations(chain, o) for o in chain.operators),
        sum(nbytes(chain, t) for t in (*chain.inputs, *chain.outputs)),
        max(_rate(device, d) for d in dtypes(chain)),
        device.bandwidth,
    )


def _rate(device: Device, dtype: str) -> float:
    """Flops per second of products of a dtype, on vectors or on the device's matrix unit."""
    if not device.matrix or dtype not in PIECES:
        return device.throughput(dtype)
    products = len(pairs(PIECES[dtype], PIECES[dtype]))
    return max(device.throughput(dtype), device.throughput("matrix") / products)


def _operations(chain: Chain, operator: Operator) -> int:
    """An operation for each call of the body and one for the reduction, at every position."""
    each = sum(isinstance(e, Call) for e in walk(operator.body)) + bool(operator.over)
    return each * math.prod(chain.size(a) for a in operator.related)
