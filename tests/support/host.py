"""What the CPU of the tests has instructions for: LLVM ends a process that has none."""

from __future__ import annotations

import pytest

from mcfuser.devices.cpu import unmeasured_cpu
from mcfuser.lowering.tensorir.dots import QUAD, longest
from mcfuser.lowering.tensorir.knobs import TensorirKnobs

HOST = unmeasured_cpu()
WIDE_QUADS = TensorirKnobs(8, 2, 16, dots=QUAD)


def runs(knobs: TensorirKnobs) -> bool:
    """Whether the CPU has the dot products of these knobs, in vectors of so many lanes."""
    return knobs.dots <= longest(HOST) and 32 * knobs.lanes <= HOST.bits


needs_wide_quads = pytest.mark.skipif(
    not runs(WIDE_QUADS), reason="this CPU has no vpdpbusd of 512 bits"
)
