"""Recurrences on a CPU: one function walks over a whole sequence.

A step's products and what is computed of them are made a panel of units at a time: sums of a few
rows stay in registers along the depth, and become the panel's values at once. The state's matrices
are packed by panels (mcfuser.codegen.llvm.walk). The states before and after a step lie in two
halves of a buffer, which take turns.

100 steps of an LSTM of 128 units, one row: 0.31 ms. Unrolled, each step a product and a map of
its own, they took 1.9 (two cores, EPYC, AVX2, 2026-11-28).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import tvm
from tvm import relax

from mcfuser.chain.recurrence import Recurrence, RecurrentStage
from mcfuser.codegen.call import called
from mcfuser.codegen.llvm.walk import Walk, packed, walked
from mcfuser.codegen.llvm.written import function_text
from mcfuser.codegen.recurrences import with_loops
from mcfuser.codegen.shapes import fixed
from mcfuser.codegen.tensorir.integer import plus, vectors
from mcfuser.codegen.tensorir.scalar import Scalar, Typed
from mcfuser.device import Device
from mcfuser.expr import Read


def recurrences(device: Device) -> tvm.transform.Pass:
    """Calls loops that compute a module's recurrences."""

    def apply(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return with_loops(module, partial(recurrence, device=device))

    return tvm.transform.module_pass(apply, opt_level=0, name="mcfuser.Recurrences")


def recurrence(
    builder: relax.BlockBuilder, call: relax.Call, found: Recurrence, device: Device
) -> relax.Expr:
    """The call of a loop that computes what a call of a recurrence stands for."""
    given, square, *others = call.args[1].fields
    extents = fixed(call.ty.fields[0].shape)
    assert extents is not None
    steps, _, batch, hidden = extents
    walk = walked(found, steps, batch, hidden, device)
    matrices = relax.const(packed(square.value.numpy().astype(np.float32), walk))
    return called(
        builder, source(walk), "recurrence", [given, matrices, *others], [*call.ty.fields]
    )


def source(walk: Walk) -> str:
    """The text of a PrimFunc that computes a recurrence."""
    return _Writer(walk).text()


@dataclass(frozen=True)
class _Writer:
    """Writes the loops of a walk."""

    walk: Walk

    @property
    def cell(self) -> Recurrence:
        return self.walk.recurrence

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.cell.states)

    def text(self) -> str:
        shapes = self._shapes()
        kinds = {name: ', "int32"' if name == "lengths" else "" for name in shapes}
        parameters = ", ".join(
            f"{k}_arg: T.Buffer({shape}{kinds[k]})" for k, shape in shapes.items()
        )
        flat = (
            f"{k} = T.decl_buffer(({math.prod(shape)},){kinds[k]}, data={k}_arg.data)"
            for k, shape in shapes.items()
        )
        body = self._shared() if self.walk.shares else self._alone()
        return function_text(f"recurrence({parameters})", flat, body)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters in their order: what the steps are given, the packed matrices, constants,
        lengths, the states before the first step; then what the steps show, and the states behind
        the last one."""
        w, directions = self.walk, self.cell.directions
        form = directions, w.batch, w.hidden
        shapes: dict[str, tuple[int, ...]] = {
            "given": (w.steps * w.batch, directions * len(self.cell.given) * w.hidden),
            "square": (directions, self.cell.sums * w.hidden * w.padded),
        }
        if self.cell.constants:
            shapes["fixed"] = directions, len(self.cell.constants), w.hidden
        if self.cell.lengths:
            shapes["lengths"] = (w.batch,)
        shapes |= {f"first_{s}": form for s in self.states}
        shapes["out"] = w.steps, *form
        return shapes | {f"last_{s}": form for s in self.states}

    def _alone(self) -> Iterator[str]:
        """Each core walks over the sequence for some blocks of rows, in some directions."""
        w = self.walk
        units = self.cell.directions * w.blocks
        inside = (
            f"d: T.let[T.int32] = u // {w.blocks}",
            f"first: T.let[T.int32] = {self._first(f'u % {w.blocks}')}",
            *self._buffers(),
            *self._copied("{buffer}[{slot}] = first_{state}[{at}]"),
            *self._longest("first", w.rows),
            *_under(f"for t in range({self.count}):", self._step()),
            *self._copied("last_{state}[{at}] = {buffer}[{end} + {slot}]"),
            *self._nothing("first", w.rows),
        )
        yield from _under(f"for u in {'range' if units == 1 else 'T.parallel'}({units}):", inside)

    def _shared(self) -> Iterator[str]:
        """All cores share the panels of each step."""
        every = f"for d in range({self.cell.directions}):"
        begin = self._copied("{buffer}[{slot}] = first_{state}[{at}]")
        end = self._copied("last_{state}[{at}] = {buffer}[{end} + {slot}]")
        yield from self._buffers()
        yield from _under(every, self._blocks(begin))
        yield from self._longest("0", self.walk.batch)
        yield from _under(f"for t in range({self.count}):", self._step())
        yield from _under(every, (*self._blocks(end), *self._nothing("0", self.walk.batch)))

    @property
    def count(self) -> str:
        """The number of steps that some row of a walk has."""
        return "count" if self.cell.lengths else str(self.walk.steps)

    def _longest(self, first: str, rows: int) -> Iterator[str]:
        """The number of steps that some of so many rows has."""
        if self.cell.lengths:
            yield 'longest = T.alloc_buffer((1,), "int32")'
            yield "longest[0] = 0"
            one = f"T.min(lengths[{first} + r], {self.walk.steps})"
            yield from _under(
                f"for r in range({rows}):", (f"longest[0] = T.max(longest[0], {one})",)
            )
            yield "count: T.let[T.int32] = longest[0]"

    def _nothing(self, first: str, rows: int) -> Iterator[str]:
        """What steps show that no row has."""
        w = self.walk
        if self.cell.lengths:
            line = f"((count + s) * {self.cell.directions} + d) * {w.batch} + {first} + r"
            yield f"for s, r, j in T.grid({w.steps} - count, {rows}, {w.hidden}):"
            yield f"    out[({line}) * {w.hidden} + j] = T.float32(0)"

    def _blocks(self, lines: Iterable[str]) -> Iterator[str]:
        """Statements for each block of rows."""
        first = f"first: T.let[T.int32] = {self._first('block')}"
        yield from _under(f"for block in range({self.walk.blocks}):", (first, *lines))

    def _first(self, block: str) -> str:
        """The first row of a block."""
        w = self.walk
        begun = block if w.rows == 1 else f"({block}) * {w.rows}"
        return begun if w.batch % w.rows == 0 else f"T.min({begun}, {w.batch - w.rows})"

    def _buffers(self) -> Iterator[str]:
        """The states, before and after a step in turns, and what a later stage reads."""
        w = self.walk
        for state in self.states:
            yield f"state_{state} = T.alloc_buffer(({2 * w.slots * w.padded},))"
        for name in self.cell.kept:
            yield f"kept_{name} = T.alloc_buffer(({w.slots * w.padded},))"

    def _copied(self, statement: str) -> Iterator[str]:
        """A statement for each unit of each state, in the rows of a block."""
        w = self.walk
        for state in self.states:
            made = statement.format(
                buffer=f"state_{state}", state=state, slot=f"{self._slot('r')} + j",
                at=f"(d * {w.batch} + first + r) * {w.hidden} + j",
                end=f"{self.count} % 2 * {w.slots * w.padded}",
            )  # fmt: skip
            yield f"for r, j in T.grid({w.rows}, {w.hidden}):"
            yield f"    {made}"

    def _slot(self, row: int | str) -> str:
        """Where a row of a block begins in a state, or in what is kept."""
        w = self.walk
        number = f"(d * {w.batch} + first + {row})" if w.shares else row
        return f"{number} * {w.padded}"

    def _step(self) -> Iterator[str]:
        w = self.walk
        size = w.slots * w.padded
        yield f"now: T.let[T.int32] = t % 2 * {size}"
        yield f"then: T.let[T.int32] = {size} - now"
        if not w.shares:
            yield self._time()
        begun = 0
        for stage in self.cell.stages:
            yield from self._stage(stage, begun)
            begun += len(stage.sums) * w.hidden * w.padded

    def _stage(self, stage: RecurrentStage, begun: int) -> Iterator[str]:
        """A stage's panels, the last one apart where it is not full; its matrices lie `begun`
        elements behind the first ones."""
        w, directions = self.walk, self.cell.directions
        whole, rest = divmod(w.hidden, w.lanes)
        full = [*self._panel(stage, begun, "p", w.lanes)]
        last = [*self._panel(stage, begun, str(whole), rest)] if rest else []
        if not w.shares:
            yield from _under(f"for p in range({whole}):", full if whole else ())
            yield from last
            return
        begin = (
            f"d: T.let[T.int32] = q // {whole}",
            f"p: T.let[T.int32] = q % {whole}",
            self._time(),
        )
        inside = (*begin, *self._blocks(full))
        yield from _under(f"for q in T.parallel({directions * whole}):", inside if whole else ())
        inside = (self._time(), *self._blocks(last))
        yield from _under(f"for d in range({directions}):", inside if last else ())

    def _time(self) -> str:
        """The step of the sequence at which a direction is."""
        ways = self.cell.backward
        if len(ways) == 2:
            return f"at: T.let[T.int32] = t + d * ({self.count} - 1 - 2 * t)"
        return f"at: T.let[T.int32] = {f'{self.count} - 1 - t' if ways[0] else 't'}"

    def _panel(self, stage: RecurrentStage, begun: int, panel: str, units: int) -> Iterator[str]:
        """The sums of a panel, in the rows of a block, and the values of its first `units`."""
        w, sums = self.walk, len(stage.sums)
        each = sums * w.lanes
        vector = f"for j in T.vectorized({w.lanes}):"
        yield f"sums = T.alloc_buffer(({w.rows * each},))"
        for i in range(w.rows * sums):
            yield from _under(vector, (f"sums[{i * w.lanes} + j] = T.float32(0)",))
        base = f"d * {self.cell.sums * w.hidden * w.padded} + {begun}"
        yield f"panel: T.let[T.int32] = {base} + {panel} * {w.hidden * each}"
        deep = [
            f"x{r}: T.let[T.float32] = {self._held(stage.operand, r, 'k')}" for r in range(w.rows)
        ]
        for s in range(sums):
            for r in range(w.rows):
                to = f"sums[{(r * sums + s) * w.lanes} + j]"
                element = f"square[panel + k * {each} + {s * w.lanes} + j]"
                deep += _under(vector, (f"{to} = {to} + x{r} * {element}",))
        yield from _under(f"for k in range({w.hidden}):", deep)
        for r in range(w.rows):
            for start, trips, lanes in vectors(str(units), w.lanes):
                loop = f"T.vectorized({lanes})" if lanes > 1 else f"range({trips})"
                values = self._values(stage, panel, r, plus(start, "j"))
                yield from _under(f"for j in {loop}:", values)

    def _held(self, name: str, row: int, at: str) -> str:
        """An element of a state, or of a value that an earlier stage has kept."""
        if name in self.states:
            return f"state_{name}[now + {self._slot(row)} + {at}]"
        return f"kept_{name}[{self._slot(row)} + {at}]"

    def _values(self, stage: RecurrentStage, panel: str, row: int, lane: str) -> Iterator[str]:
        """The values of a unit, and where they go."""
        unit = f"{panel} * {self.walk.lanes} + {lane}"
        names: dict[str, str] = {}
        lines: list[str] = []

        def element(r: Read) -> Typed:
            found = names.get(r.tensor) or self._element(stage, r.tensor, row, lane, unit)
            return Typed(found, "float32")

        scalar = Scalar(lines.append, element, lambda axis: Typed(unit, "int32"))
        for name, e in stage.values:
            names[name] = scalar.let(scalar.text(e))
            lines += self._stored(name, names[name], row, unit)
        yield from lines

    def _element(self, stage: RecurrentStage, name: str, row: int, lane: str, unit: str) -> str:
        """What a step reads of a unit: a sum, what the step is given, a constant, or a state."""
        w, cell = self.walk, self.cell
        if name in stage.sums:
            number = row * len(stage.sums) + stage.sums.index(name)
            return f"sums[{number * w.lanes} + {lane}]"
        if name in cell.given:
            line = f"((at * {w.batch} + first + {row}) * {cell.directions} + d) * {len(cell.given)}"
            return f"given[({line} + {cell.given.index(name)}) * {w.hidden} + {unit}]"
        if name in cell.constants:
            place = f"d * {len(cell.constants)} + {cell.constants.index(name)}"
            return f"fixed[({place}) * {w.hidden} + {unit}]"
        return self._held(name, row, unit)

    def _stored(self, name: str, value: str, row: int, unit: str) -> Iterator[str]:
        """Stores a value where it goes: what later stages read, a state, what the step shows.
        Behind a sequence's end states stay, and nothing is shown."""
        w, cell = self.walk, self.cell
        there = f"at < lengths[first + {row}]"

        def chosen(before: str) -> str:
            return f"T.Select({there}, {value}, {before})" if cell.lengths else value

        if name in cell.kept:
            yield f"kept_{name}[{self._slot(row)} + {unit}] = {value}"
        for state in (state for state, after in cell.states if after == name):
            before = self._held(state, row, unit)
            yield f"state_{state}[then + {self._slot(row)} + {unit}] = {chosen(before)}"
        if name == cell.states[0][1]:
            line = f"(at * {cell.directions} + d) * {w.batch} + first + {row}"
            yield f"out[({line}) * {w.hidden} + {unit}] = {chosen('T.float32(0)')}"


def _under(head: str, lines: Iterable[str]) -> tuple[str, ...]:
    """A loop with statements; nothing where there are none."""
    inside = tuple(f"    {line}" for line in lines)
    return (head, *inside) if inside else ()
