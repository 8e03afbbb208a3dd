"""The knobs of the code generator for CPUs: what a candidate chooses besides plan and tiles."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.device import Device
from mcfuser.lowering.tensorir.dots import PAIR, QUAD, longest, multiplies_whole
from mcfuser.lowering.tensorir.matrix import AMX, multiplies
from mcfuser.lowering.tensorir.neighbours import STEP, have_neighbours
from mcfuser.lowering.tensorir.winograd import TRANSFORMS, convolves
from mcfuser.space.knobs import knob

LANE = 32
"""Bits of a float32."""


@dataclass(frozen=True, slots=True)
class TensorirKnobs:
    """The register micro-tile of products: `rows` rows by `vectors` vectors of columns, each of
    `lanes` float32 elements; whether the CPU's `matrix` unit computes those that it takes; how many
    results along each axis of a picture Winograd's algorithm computes together, of the convolutions
    that it can, 0 where it computes none; and how many small whole numbers are multiplied at once,
    as `dots` along the depth, or fewer where they are not small enough; 0 where all are floats; and
    how many `neighbours` a core computes one after the other, of the blocks that copy the same."""

    rows: int = knob(8, (8, 6, 4))
    vectors: int = knob(2, (2, 4, 3))
    lanes: int = knob(16, (16, 8, 4))
    matrix: bool = knob(False, (False, True), multiplies)
    winograd: int = knob(0, (0, *TRANSFORMS), convolves)
    dots: int = knob(0, (0, PAIR, QUAD), multiplies_whole)
    neighbours: int = knob(1, (1, STEP, STEP**2), have_neighbours)

    def allowed(self, device: Device) -> bool:
        """Whether the micro-tile is one of those that fill the accumulators without spilling: 12 to
        24 of the 32 registers of AVX-512, at most 12 of 16 on narrower ones. Beside the matrix unit
        there is one of them, for the products that are too small for it."""
        shapes: tuple[tuple[int, int], ...] = ((8, 2), (6, 4), (8, 3))
        if device.bits != 512:
            shapes = ((6, 2), (4, 3))
        if self.matrix:
            if self.winograd or self.dots:
                return False
            shapes = shapes[:1] if device.bits == 512 and device.matrix == AMX else ()
        if self.dots and (self.winograd or self.dots != longest(device)):
            return False
        fills = (self.rows, self.vectors) in shapes
        return fills and self.lanes == max(device.bits, 128) // LANE
