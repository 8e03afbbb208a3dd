"""Seconds of a kernel for CPUs, of events in a core that follow each other.

Passes over a tile do not overlap: every statement reads and writes its tiles in the core's caches.
An event takes so many steps, a step being the time in which a core multiplies and adds one vector
at its peak. Nothing is faster than its arithmetic at that peak.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import BYTES, Chain, Operator, Product, contiguous_axes
from mcfuser.device import Device
from mcfuser.expr import Call, axes, reads, walk
from mcfuser.lowering.tensorir.box import box_spans
from mcfuser.lowering.tensorir.epilogue import applies, epilogues
from mcfuser.lowering.tensorir.knobs import LANE
from mcfuser.lowering.tensorir.matrix import last_row, oriented
from mcfuser.lowering.tensorir.micro import (
    FIRST,
    FLOAT,
    LINE,
    NARROWEST,
    WIDE,
    lie_in_panels,
    micro_product,
    micro_rows,
    micro_vectors,
)
from mcfuser.lowering.tensorir.neighbours import Sharing, groups, shared_by, sharers
from mcfuser.lowering.tensorir.unpacked import MadeWeights, made_of, operations, unpacked
from mcfuser.model.analytical import storage
from mcfuser.model.dots import dot_seconds
from mcfuser.model.matrix import matrix_seconds
from mcfuser.model.refill import outgrown, refilled
from mcfuser.model.winograd import winograd_seconds
from mcfuser.space.count import calls
from mcfuser.space.knobs import Columns
from mcfuser.space.plan import (
    Floats,
    Ints,
    Plan,
    Sizes,
    blocks,
    elements,
    flops,
    repeats,
    shared,
    sizes_of,
)
from mcfuser.space.statement import (
    Buffer,
    Combine,
    Compute,
    Init,
    Load,
    Repair,
    SaveOld,
    SimpleStatement,
    Store,
    StorePartial,
    statements,
)

LAUNCH = 2e-6
"""Seconds from the call of a kernel to its first block, and from its last one's end to the return:
TVM's thread pool. Combining the parts of a split loop is a second launch."""
SLOW = frozenset({"exp", "exp2", "tanh", "erf", "log", "sqrt", "div", "pow"})
"""Functions that take as long as many additions."""
STEPS: Mapping[str, float] = MappingProxyType({
    "run": 4.0,  # the head of an innermost loop, with its addresses
    "vector": 0.3,  # a vector that a map reads or writes, or three of its operations
    "slow": 16.0,  # a vector of a slow function
    "far": 1.2,  # a vector of a computed tile that outgrows the first cache
    "turned": 3.8,  # an element of such a tile that is read across its rows
    "reduced": 2.3,  # a vector that is added to a sum, or compared with a maximum
    "single": 0.2,  # an element that fills no vector
    "filled": 0.3,  # an element of a right operand that is put in a panel beside its neighbours
    "summed": 0.45,  # a vector of a product's tile that is added to
    "packed": 2.0,  # an element of a right operand that is put in a panel
    "multiplied": 0.33,  # a vector of a product that is multiplied and added
    "operand": 1.0,  # a vector of its right operand, or a broadcast element of its left one
    "left": 0.09,  # an element of a left tile that outgrows the first cache
    "right": 0.5,  # a vector of a panel that does
    "line": 12.0,  # a line of an array with padding that is copied into a box
    "copied": 1.0,  # an element of it
    "refilled": 2.0,  # a line of a cache that is read from beyond the core's private one
})  # fmt: skip
"""Steps of an event: least squares over 218 chains of convolutional networks and a transformer, 20
candidates each, measured alone (an EPYC with AVX2, two cores, 2026-11-26), "refilled" over 133 of
three networks and three transformers (a Xeon with AVX-512, two threads of a core, 2026-11-27;
docs/space.md has what they are worth), "filled" and "packed" of 60 candidates of each of three
attentions (the same Xeon, also told that it has AVX2)."""
FETCHED: Mapping[str, float] = MappingProxyType({
    "summed": 3.5, "operand": 1.25, "left": 0.03, "right": 0.1, "refilled": 1.0,
})  # fmt: skip
"""The same of wide vectors, for which rows of panels and the next panel are fetched ahead
(codegen.tensorir.fetch): "left", "right" and "refilled" over 54 chains, 28 candidates each, the
others over 22 chains of six networks, 32 candidates each, where a neighbour ran on the core's other
thread (a Xeon with AVX-512, two threads, 2026-11-27)."""
INNER = frozenset({"multiplied", "operand"})
"""Events of a product's innermost loop, which is as long as its arithmetic at least."""

Events = dict[str, Floats]


def sequential(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
    """Seconds for each row of `tiles` [candidates, axes], with the candidates' settings of
    TensorirKnobs."""
    core = _Core(plan, sizes_of(plan, tiles), settings, device)
    count, each = blocks(plan, tiles), core.neighbours
    waves: Floats = np.ceil(np.round(count / each) / device.units)
    launches = 2 if plan.split is not None else 1
    return waves * each * _all_blocks(core, tiles) / count + LAUNCH * launches


def core_seconds(plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
    """Seconds of one core that all blocks take together."""
    return _all_blocks(_Core(plan, sizes_of(plan, tiles), settings, device), tiles)


def _all_blocks(core: _Core, tiles: Ints) -> Floats:
    plan, settings, device = core.plan, core.settings, core.device
    products = dict[str, Floats]()
    lines = refilled(plan, core.sizes, device.fast) / LINE
    total = core.step * core.steps["refilled"] * lines
    for s, outer in statements(plan.placed[1]):
        visits = repeats(core.sizes, outer)
        visits = visits / core.neighbours if s in core.shared.loads else visits
        seconds = visits * core.seconds(s, {loop.axis for loop in outer})
        if isinstance(s, Compute) and s.operator.product is not None:
            products[s.buffer] = seconds
        total = total + seconds
    if (matrix := settings["matrix"]).any():
        total = total + np.where(matrix, matrix_seconds(plan, tiles, device, products), 0.0)
    if (dots := settings["dots"] > 0).any():
        total = total + np.where(dots, dot_seconds(plan, tiles, device, products), 0.0)
    for out in (int(v) for v in np.unique(settings["winograd"]) if v):
        more = winograd_seconds(plan, tiles, device, out, products)
        total = total + np.where(settings["winograd"] == out, more, 0.0)
    return total


@dataclass(frozen=True)
class _Core:
    """A core that runs the candidates of a plan, statement by statement. `around` are the axes of
    the loops around one."""

    plan: Plan
    sizes: Sizes
    settings: Columns
    device: Device

    @property
    def chain(self) -> Chain:
        return self.plan.program.chain

    @cached_property
    def buffers(self) -> Mapping[str, Buffer]:
        return {b.name: b for b in self.plan.placed[0]}

    @cached_property
    def steps(self) -> Mapping[str, float]:
        return {**STEPS, **FETCHED} if self.device.bits == LANE * WIDE else STEPS

    @cached_property
    def registers(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which candidates make a tile of weights in registers."""
        return unpacked(self.chain, self.buffers, self.plan.placed[1], self.sizes.of)

    @cached_property
    def shared(self) -> Sharing:
        return shared_by(self.plan)

    @cached_property
    def neighbours(self) -> Floats:
        """How many blocks a core runs as neighbours, on average."""
        most = sharers(self.shared, self.sizes)
        result: Floats = most / groups(most, self.settings["neighbours"])
        return result

    @cached_property
    def applied(self) -> Mapping[str, tuple[str, NDArray[np.bool_]]]:
        """By a map's tile: that of the product whose micro-kernel applies it, and for which
        candidates it does."""
        body, found = self.plan.placed[1], {}
        computes = {s.buffer: s for s, _ in statements(body) if isinstance(s, Compute)}
        for tile, ending in epilogues(self.chain, self.buffers, body).items():
            roles = micro_product(self.chain, self.buffers, computes[tile])
            assert roles is not None
            column, vectors = self.panel(roles, computes[tile].operator)
            sizes = self.sizes.of(column), vectors * self.lanes
            which = applies(self.chain, self.buffers, ending, column, *sizes)
            found[ending.buffer] = tile, which & ~self.settings["matrix"]
        return found

    @property
    def lanes(self) -> Ints:
        lanes: Ints = self.settings["lanes"]
        return lanes

    @cached_property
    def peak(self) -> float:
        """Flops per second."""
        return self.device.throughput(storage(self.plan)) / self.device.units

    @cached_property
    def step(self) -> Floats:
        """Seconds in which a vector is multiplied and added."""
        seconds: Floats = 2 * self.lanes / self.peak
        return seconds

    def elements(self, tile: str, around: Collection[str]) -> Floats:
        return elements(self.sizes, self.buffers[tile], around)

    def seconds(self, s: SimpleStatement, around: Collection[str]) -> Floats:
        """Of one visit. What is stored goes to memory, with what other cores store."""
        if isinstance(s, (Store, StorePartial)):
            nbytes = BYTES[self.buffers[s.buffer].dtype] * self.elements(s.buffer, around)
            return nbytes / self.device.bandwidth
        events = {n: self.steps[n] * x for n, x in self.events(s, around).items()}
        inner = self.step * sum((x for n, x in events.items() if n in INNER), np.zeros(1))
        others = self.step * sum((x for n, x in events.items() if n not in INNER), np.zeros(1))
        least = flops(self.plan, self.sizes, s, around) / self.peak
        result: Floats = np.maximum(others, least)
        if INNER & events.keys():
            result = np.maximum(inner, least) + others
        if isinstance(s, Compute) and s.buffer in self.registers:
            made = least + self.operations(s) / self.peak
            result = np.where(self.registers[s.buffer], made, result)
        return result

    def operations(self, s: Compute) -> Floats:
        """What a map of constants does in registers for one tile, beside its flops: predicted were
        1,002 us so and measured 825, of one row times 4096 x 4096 weights of 4 bits (an EPYC with
        AVX2, 2026-11-26)."""
        made, positions = self.made(s), self.sizes.positions(s.operator.axes)
        if made is None:
            return operations(s.body) * positions
        result: Floats = positions * made.steps(self.lanes, self.sizes.positions(made.inner))
        return result

    def made(self, s: Compute) -> MadeWeights | None:
        """How the weights of a map's tile are made in blocks."""
        for o in self.chain.operators:
            roles = o.product
            if roles is not None and (turned := oriented(roles)).right.tensor == s.operator.out:
                return made_of(s.operator.body, turned.depth)
        return None

    def events(self, s: SimpleStatement, around: Collection[str]) -> Events:
        """The events of a visit."""
        if isinstance(s, Load):
            return self.loaded(s, around)
        if isinstance(s, Compute):
            return self.computed(s, around)
        if isinstance(s, Combine):
            parts = sum((self.elements(n, around) for n in shared(s)), np.zeros(1))
            return {"vector": 2 * self.plan.parts * parts / self.lanes}
        if isinstance(s, Init):
            return {"vector": self.elements(s.buffer, around) / self.lanes}
        if isinstance(s, (Store, StorePartial)):
            return {}
        if isinstance(s, (Repair, SaveOld)):
            return {"vector": 2 * self.elements(s.buffer, around) / self.lanes}
        assert_never(s)

    def loaded(self, s: Load, around: Collection[str]) -> Events:
        """A tile is copied where it has padding around it, or is put in panels."""
        if not self.chain.tensor(s.read.tensor).padding:
            return self.packed(s.buffer, self.elements(s.buffer, around))
        spans = box_spans(self.chain, s.read, partial(self.sizes.at_hand, around=around))
        copied = self.sizes.product(spans)
        return {"line": copied / spans[-1], "copied": copied}

    def packed(self, tile: str, count: Floats) -> Events:
        """So many elements of a tile are put in panels where it is the right operand of a product:
        element by element where its columns are not contiguous, and in vectors where they are, but
        panels do not lie in it. Contiguous along its depth, it is read where it lies if the product
        has one row."""
        tensor = self.buffers[tile].tensor
        for o in self.chain.operators if not self.chain.tensor(tensor).constant else ():
            roles = o.product
            if roles is None or roles.right.tensor != tensor or not roles.columns:
                continue
            along = {*contiguous_axes(self.chain, roles.right)}
            if not along.isdisjoint(roles.columns):
                return {"filled": np.where(self.lies(roles, o), 0.0, count)}
            turned = along.isdisjoint(roles.depth) | (self.sizes.positions(roles.rows) > 1)
            return {"packed": np.where(turned, count, 0.0)}
        return {}

    def lies(self, roles: Product, o: Operator) -> NDArray[np.bool_]:
        """Whether a product's panels lie in its right operand, whose columns are contiguous."""
        column, vectors = self.panel(roles, o)
        width = vectors * self.lanes
        return lie_in_panels(self.chain, roles, roles.right.tensor, column, self.sizes.of, width)

    def panel(self, roles: Product, o: Operator) -> tuple[str, Ints]:
        """The axis along which a product's panels have columns, and their vectors."""
        column = max(roles.columns, key=o.axes.index)
        vectors = micro_vectors(self.sizes.of(column), self.lanes, self.settings["vectors"])
        return column, vectors

    def computed(self, s: Compute, around: Collection[str]) -> Events:
        roles, o = micro_product(self.chain, self.buffers, s), s.operator
        if roles is not None:
            return self.multiplied(s, roles, around)
        tiles = {*reads(s.body)}
        last = self.sizes.of(o.axes[-1]) if o.axes else self.sizes.one
        runs: Floats = self.sizes.positions(o.axes) / last
        vectors, single = self.vectors(o.axes[-1]) if o.axes else (0 * last, last)
        if o.reduce != "none":
            deep = runs * self.sizes.positions(o.over)
            more = 0.3 * (calls(s.body) - 1) * deep * vectors
            return {"run": runs, "reduced": deep * vectors, "single": deep * single, "vector": more}
        summed, applied = self.applied.get(s.buffer, ("", np.zeros(1, bool)))
        moved = 1 + len(tiles) - applied + 0.3 * calls(s.body)
        slow = sum(isinstance(e, Call) and e.op in SLOW for e in walk(s.body))
        events = {
            "run": runs * ~applied, "vector": moved * runs * vectors,
            "single": moved * runs * single, "slow": slow * runs * (vectors + single),
        }  # fmt: skip
        far, turned = np.zeros(1), np.zeros(1)
        for r in tiles if o.axes else ():
            if self.buffers[r.tensor].tensor in self.chain.inputs:
                continue
            beyond = self.sizes.positions(o.axes) * self.far(r.tensor, around)
            beyond = beyond * ~applied if r.tensor == summed else beyond
            if o.axes[-1] in axes(r) and r.indices[-1].plain != o.axes[-1]:
                turned = turned + beyond
            else:
                far = far + beyond / self.lanes
        return {**events, "far": far, "turned": turned}

    def vectors(self, axis: str) -> tuple[Floats, Floats]:
        """Vectors, and elements that fill none, along an axis of a tile (`integer.vectors`); on
        average over tiles where the last one ends early: what fills no whole vector then is
        computed one by one in each of them, for no count is known."""
        size, tile, lanes = self.chain.size(axis), self.sizes.of(axis), self.lanes
        trips, known = -(-size // tile), (size % tile == 0) | (tile >= size)
        rest = size - (trips - 1) * tile
        ragged = ((trips - 1) * (tile // lanes) + rest // lanes) / trips
        left = tile % lanes
        few = (left == 1) | (tile < NARROWEST)
        one = (tile > lanes) | (left & (left - 1) == 0)
        last = np.where(few | (left == 0), 0, np.where(one, 1, 2))
        vectors = np.where(known, tile // lanes + last, ragged)
        return vectors, np.where(known, few * left, size / trips - ragged * lanes)

    def far(self, tile: str, around: Collection[str]) -> Floats:
        return outgrown(FLOAT * self.elements(tile, around), FIRST)

    def multiplied(self, s: Compute, roles: Product, around: Collection[str]) -> Events:
        """A product, a micro-tile at a time."""
        column, vectors = self.panel(roles, s.operator)
        columns, rows = self.sizes.of(column), last_row(roles, self.sizes.of)
        held = self.settings["rows"] * self.settings["vectors"] // vectors
        high = micro_rows(rows, held, self.lanes)
        depth, others = self.sizes.positions(roles.depth), self.sizes.positions(s.operator.axes)
        many = others / (rows * columns) * -(-rows // high) * -(-columns // (vectors * self.lanes))
        steps, sums = many * depth, high * vectors
        left = outgrown(FLOAT * rows * depth, FIRST)
        right = outgrown(FLOAT * vectors * self.lanes * depth, FIRST)
        return {
            "run": many, "multiplied": steps * sums, "operand": steps * (high + vectors),
            "left": steps * high * left, "right": steps * vectors * right,
            "summed": 2 * many * sums, "far": 2 * many * sums * self.far(s.buffer, around),
        }  # fmt: skip
