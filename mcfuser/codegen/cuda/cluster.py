"""How a GPU walks over the sequence of a recurrence: a cluster of blocks keeps the matrices.

Each block has some of the units, and keeps the parts of the matrices that these need: in registers,
and what these cannot hold in shared memory. Blocks send each other the units that a step has
computed. Directions, and rows of a batch, know nothing of each other, and have clusters of their
own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES
from mcfuser.chain.recurrence import Recurrence, RecurrenceLimits, RecurrentStage
from mcfuser.device import Device
from mcfuser.lowering.triton.instructions import architecture

LANES = 32
"""Threads of a warp."""
WARPS = 8
"""Warps of a block. With 4 or 16 a step takes as long or longer (LSTMs of 32 to 512 units)."""
THREADS = WARPS * LANES
PIECE = 16
"""Bytes of a matrix that a thread takes at once."""
HELD = 40
"""The most pieces that a thread keeps in registers: with more, they would spill."""
BLOCKS = 8
"""The most blocks of a cluster that every GPU can start that has clusters."""
ROWS = {2: 8, 4: 4}
"""The most rows of a batch that a cluster takes, by the bytes of a number: as many as a tensor
core's product has columns, or as registers have room for."""
BATCHES = 16, 64, 128, 512
"""Sizes of a batch up to which so many units are allowed that no cluster waits for more than one
other. An LSTM of 512 units takes 0.72 of the time of steps that are written out with 128 rows, and
1.24 with 512; one of 256 takes 0.55 then (H200, 2026-11-28)."""
CLUSTERS = 90
"""The first architecture on which blocks of a cluster write to each other's shared memory."""
PRODUCTS_OF_A_STEP = 4
"""The most matrices that a step of ONNX's recurrences has."""
TENSOR_CORES = 80
"""The first architecture with the tensor cores' product of 16 by 8 by 16."""

# What a step takes, in nanoseconds, fitted to 90 recurrences on an H200 (2026-11-28): if one block
# has it all, and more for blocks that send; the same of every stage but the first; of a piece, and
# more of one in shared memory, by the bytes of a number (of 4, for each row); of a unit of each row
# but the first.
STEP = 450, 150
STAGE = 130, 125
PIECES = {2: 7, 4: 8}
FURTHER = {2: 10, 4: 15}
ITEM = 1.5


@dataclass(frozen=True, slots=True)
class Division:
    """How the warps of a block divide the matrix of a stage.

    Its rows are `each` x `groups` tiles, its depth `parts` x `deep` times the depth that a lane
    reads of a vector at once. One warp of each group and part has `each` tiles.
    """

    each: int
    groups: int
    parts: int
    deep: int


@dataclass(frozen=True)
class ClusterWalk:
    """A recurrence over so many steps, and how it is computed: by `blocks` blocks for each `rows`
    rows of the batch.

    Its tensors are of a `dtype`; its matrices, and the vectors that they multiply, of a type
    `multiplied`, which may be narrower.
    """

    recurrence: Recurrence
    steps: int
    batch: int
    hidden: int
    dtype: str
    multiplied: str
    blocks: int
    rows: int

    @property
    def size(self) -> int:
        """Bytes of a number that is multiplied."""
        return BYTES[self.multiplied]

    @property
    def clusters(self) -> int:
        """Clusters of each direction; the last one begins earlier where it would end behind the
        batch."""
        return -(-self.batch // self.rows)

    @property
    def units(self) -> int:
        """Units of a block: an even number, for two of 16 bits are sent at once."""
        units = -(-self.hidden // self.blocks)
        return units + units % 2

    @property
    def tile(self) -> int:
        """Rows of a matrix that a warp takes at once: those of a tensor core's product, or one for
        each lane."""
        return 16 if self.size == 2 else LANES

    @property
    def depth(self) -> int:
        """The depth of what lanes read of a vector at once: 8 numbers of 16 bits, which four lanes
        do side by side, or 4 of 32."""
        return 32 if self.size == 2 else 4

    @property
    def divisions(self) -> tuple[Division, ...]:
        """How each stage's matrix is divided."""
        return tuple(self._divided(len(stage.sums)) for stage in self.recurrence.stages)

    def _divided(self, sums: int) -> Division:
        tiles = -(-sums * self.units // self.tile)
        each = -(-tiles // WARPS)
        groups = -(-tiles // each)
        depths = -(-self.hidden // self.depth)
        deep = -(-depths // min(WARPS // groups, depths))
        return Division(each, groups, -(-depths // deep), deep)

    def height(self, division: Division) -> int:
        """Rows of a stage's matrix, with those that only fill tiles."""
        return division.each * division.groups * self.tile

    def pieces_of(self, division: Division) -> int:
        """Pieces that a thread has of a stage's matrix: two of what a lane reads at once of 16
        bits."""
        return division.each * division.deep * (2 if self.size == 2 else 1)

    @property
    def pieces(self) -> int:
        """Pieces that a thread has of all matrices."""
        return sum(map(self.pieces_of, self.divisions))

    @property
    def held(self) -> int:
        """Pieces that a thread keeps in registers."""
        return min(self.pieces, HELD)

    @property
    def operands(self) -> tuple[str, ...]:
        """The vectors that are multiplied, each once."""
        return tuple(dict.fromkeys(stage.operand for stage in self.recurrence.stages))

    def is_state(self, name: str) -> bool:
        """Whether a vector is a state, which is there twice: before and after a step."""
        return name in dict(self.recurrence.states)

    @property
    def width(self) -> int:
        """Numbers that a row of a vector has room for. Rows begin half of the banks apart."""
        depth = max(d.parts * d.deep for d in self.divisions) * self.depth
        line = 128 // self.size
        return -(-max(depth, self.blocks * self.units) // line) * line + line // 2

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """What lies in a block's shared memory, in this order, with the bytes of each."""
        row = self.rows * self.width * self.size
        vectors = ((f"vector_{name}", row * (1 + self.is_state(name))) for name in self.operands)
        sums = max(d.parts * self.height(d) for d in self.divisions) * self.rows
        return (
            ("further", (self.pieces - self.held) * THREADS * PIECE), *vectors, ("sums", 4 * sums),
            ("arrived", 16 * len(self.operands)),
        )  # fmt: skip

    @property
    def shared(self) -> int:
        """Bytes of a block's shared memory."""
        return sum(size for _, size in self.places)

    @property
    def seconds(self) -> float:
        """What a step takes about, in clusters that run at once."""
        several = self.blocks > 1
        stages = STEP, *[STAGE] * (len(self.recurrence.stages) - 1)
        fixed = sum(first + more * several for first, more in stages)
        rows = self.rows if self.size == 4 else 1
        further = (self.pieces - self.held) * FURTHER[self.size]
        pieces = self.pieces * PIECES[self.size] + further
        items = ITEM * self.units * (self.rows - 1)
        return 1e-9 * (fixed + pieces * rows + items)


def clustered(
    found: Recurrence,
    steps: int,
    batch: int,
    hidden: int,
    dtype: str,
    multiplied: str,
    device: Device,
) -> ClusterWalk:
    """How a recurrence that is within a device's limits (`recurrence_limits`) is computed there: in
    the time that is the least as predicted."""
    every = (
        ClusterWalk(found, steps, batch, hidden, dtype, multiplied, blocks, rows)
        for blocks in _clusters(device)
        for rows in range(1, min(batch, ROWS[BYTES[multiplied]]) + 1)
    )
    fitting = [walk for walk in every if _fits(walk, device)]

    def cost(walk: ClusterWalk) -> float:
        clusters = walk.clusters * found.directions
        return walk.seconds * -(-clusters // _at_once(walk.blocks, device))

    return min(fitting, key=cost)


def _clusters(device: Device) -> tuple[int, ...]:
    """The numbers of blocks that a cluster may have."""
    return (1, 2, 4, BLOCKS) if architecture(device.arch) >= CLUSTERS else (1,)


def _at_once(blocks: int, device: Device) -> int:
    """Clusters of so many blocks that run at a time. Those of a cluster are neighbours, so some
    multiprocessors stay idle: an H200, with 132, ran 14 clusters of 8 at once, and not 16."""
    usable = device.units if blocks <= 2 else device.units * 7 // 8
    return max(1, usable // blocks)


def _fits(walk: ClusterWalk, device: Device) -> bool:
    return walk.shared <= device.fast


@lru_cache
def recurrence_limits(device: Device) -> RecurrenceLimits:
    """The recurrences whose matrices clusters of a device can keep, of as many products as those of
    ONNX have."""
    narrow = ("float16", "bfloat16") if architecture(device.arch) >= TENSOR_CORES else ()
    dtypes = ("float32", *narrow)
    sizes = tuple(
        (dtype, stages, batch, _most(stages, dtype, blocks, device))
        for dtype in dtypes
        for batch in BATCHES
        for blocks in (_blocks_for(batch, ROWS[BYTES[dtype]], device),)
        for sums in range(1, PRODUCTS_OF_A_STEP + 1)
        for stages in _stages(sums)
    )
    return RecurrenceLimits(dtypes, sizes)


def _blocks_for(batch: int, rows: int, device: Device) -> int:
    """The most blocks of clusters that a batch fills no more than twice."""
    clusters = -(-batch // rows)
    return max(b for b in _clusters(device) if b == 1 or clusters <= 2 * _at_once(b, device))


def _stages(sums: int) -> Iterator[tuple[int, ...]]:
    """The ways in which products may be in stages."""
    yield (sums,)
    for first in range(1, sums):
        for others in _stages(sums - first):
            yield (first, *others)


def _most(stages: Sequence[int], dtype: str, blocks: int, device: Device) -> int:
    """The most units with which such a recurrence fits, as a multiple of 8."""
    operands = ("h", *(f"v{i}" for i in range(1, len(stages))))
    parts = tuple(
        RecurrentStage(o, ("sum",) * n, ()) for o, n in zip(operands, stages, strict=True)
    )
    found = Recurrence((), (), (("h", "next"),), parts, (False,))

    def fits(hidden: int) -> bool:
        rows = ROWS[BYTES[dtype]]
        return _fits(ClusterWalk(found, 1, rows, hidden, dtype, dtype, blocks, rows), device)

    return 8 * (bisect_left(range(1, 1 << 10), True, key=lambda n: not fits(8 * n)))


def packed(square: NDArray[np.generic], walk: ClusterWalk) -> NDArray[np.generic]:
    """The matrices [directions, depth, sums x hidden] by pieces, [directions, blocks, pieces,
    threads, numbers of a piece]."""
    directions, depth, _ = square.shape
    room = walk.blocks * walk.units
    by_unit = square.reshape(directions, depth, walk.recurrence.sums, walk.hidden)
    wide = np.pad(by_unit, ((0, 0), (0, 0), (0, 0), (0, room - walk.hidden)))
    made, begun = [], 0
    for stage, division in zip(walk.recurrence.stages, walk.divisions, strict=True):
        end = begun + len(stage.sums)
        part = wide[:, :, begun:end].reshape(directions, depth, end - begun, walk.blocks, -1)
        rows = part.transpose(0, 3, 2, 4, 1).reshape(directions, walk.blocks, -1, depth)
        high = walk.height(division) - rows.shape[2]
        deep = division.parts * division.deep * walk.depth - depth
        made.append(_pieces(np.pad(rows, ((0, 0), (0, 0), (0, high), (0, deep))), division, walk))
        begun = end
    return np.ascontiguousarray(np.concatenate(made, axis=2))


def _pieces(
    rows: NDArray[np.generic], division: Division, walk: ClusterWalk
) -> NDArray[np.generic]:
    """A stage's rows [directions, blocks, tiles x rows, depth] by pieces.

    Of 16 bits, lane `4r + q` has the numbers that a tensor core's product takes from it of the rows
    `r` and `r + 8` of a tile. Along the depth these are 4 of the 8 that the lane reads of the
    vector at once: the product's order of them is not that of memory, which no sum minds.
    """
    (directions, blocks), d = rows.shape[:2], division
    tiles = directions, blocks, d.each, d.groups
    if walk.size == 2:
        # halves of the rows, rows; parts, deep, quarters, pieces, halves of the depth, numbers
        split = rows.reshape(*tiles, 2, 8, d.parts, d.deep, 4, 2, 2, 2)
        ordered = split.transpose(0, 1, 2, 7, 9, 6, 3, 5, 8, 10, 4, 11)
    else:
        split = rows.reshape(*tiles, LANES, d.parts, d.deep, 4)
        ordered = split.transpose(0, 1, 2, 6, 5, 3, 4, 7)
    busy = d.parts * d.groups * LANES
    made = ordered.reshape(directions, blocks, walk.pieces_of(d), busy, -1)
    return np.pad(made, ((0, 0), (0, 0), (0, 0), (0, THREADS - busy), (0, 0)))
