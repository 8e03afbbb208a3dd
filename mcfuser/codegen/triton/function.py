"""A schedule as Triton source, statement by statement, as a person would write it.

Every axis takes one of two forms. An axis with one position an iteration is a number. Any other is
a vector of positions, as wide as Triton demands: the next power of two, and 16 at least where a
matrix product uses it; `n_in` masks what the width or the last iteration adds, where it adds
anything. A loop over an axis of which a buffer keeps every tile is written out iteration by
iteration, so that each tile is a variable of its own (`E_0`, `E_1`) and stays in registers.

A split becomes two kernels, one that runs the parts and one that combines their partial results, or
one kernel in which the last part to end combines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mcfuser.chain import LOWEST, Bounds, identifier
from mcfuser.codegen.triton.called import WAITING, Called, handover, waited
from mcfuser.codegen.triton.dialect import GLUON, TRITON
from mcfuser.codegen.triton.frame import LINE, TAB, Frame, Part, call, mentions
from mcfuser.codegen.triton.grid import identify
from mcfuser.codegen.triton.hopper.gluon import HEAD as GLUON_HEAD
from mcfuser.codegen.triton.hopper.specialised import specialised
from mcfuser.codegen.triton.loop import block
from mcfuser.codegen.triton.rounded import ROUND, ROUNDING
from mcfuser.codegen.triton.source import Launch, TritonSource, Workspace
from mcfuser.lowering.loops import block_body
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal, Loop, Statement, StorePartial, statements

DEFAULT = TritonKnobs()
HEAD = ("import triton", "import triton.language as tl")

KernelLines = tuple[list[str], Launch]
"""A function's lines, and how to launch it."""


def generate(
    schedule: Schedule, name: str, lowering: TritonKnobs = DEFAULT, dependent: bool = False
) -> TritonSource:
    """The schedule as Triton source whose first kernel has that name.

    Where `dependent`, blocks may start before the kernels ahead of theirs end, and wait for them
    (CUDA's programmatic dependent launch).

    Raises Illegal where Triton cannot express it: a tile over Triton's 1,048,576 elements,
    statements outside the grid, an operator without counterpart, tensor maps that fit no load.
    """
    chain = schedule.chain
    parameters = (*chain.inputs, *chain.outputs)
    workspace = _workspace(schedule, lowering)
    called = Called((*parameters, *(w.name for w in workspace)), dependent)
    groups = WarpGroups(schedule, lowering.stages) if lowering.groups else None
    if groups is not None:
        kernels = [specialised(groups, name, called)]
    else:
        kernels = _kernels(schedule, name, lowering, called)
    texts = [text for text, _ in kernels]
    language, imports = (GLUON, GLUON_HEAD) if groups is not None else (TRITON, HEAD)
    head = [*_header(schedule), *imports, *(WAITING if dependent else ()), ""]
    if any(mentions(text, "LOWEST") for text in texts):
        least = f"LOWEST = {language.word('constexpr')}({LOWEST:.17g})"
        head += [least.replace("e+", "e"), ""]
    if any(mentions(text, ROUND) for text in texts):
        head += ROUNDING
    lines = [*head, *(line for text in texts for line in ("", *text, ""))]
    return TritonSource(
        "\n".join(lines[:-1]) + "\n",
        tuple(launch for _, launch in kernels),
        parameters,
        tuple(chain.tensor(p).dtype for p in parameters),
        len(chain.outputs),
        lowering.warps,
        lowering.stages,
        groups.threads if groups is not None else 32 * lowering.warps,
        workspace,
        dependent,
    )


def _kernels(
    schedule: Schedule, name: str, lowering: TritonKnobs, called: Called
) -> list[KernelLines]:
    layout = TileLayout(schedule, lowering.tma, lowering.dot)
    if schedule.split is None:
        kernels = [_one(layout, name, called)]
    elif lowering.combine == "last":
        kernels = [_last(layout, name, called)]
    else:
        kernels = [_local(layout, name, called), _global(layout, f"{name}_combine", called)]
    if lowering.tma and not any(launch.maps for _, launch in kernels):
        raise Illegal("no operand of a product can be loaded through a tensor map")
    return kernels


def _header(schedule: Schedule) -> list[str]:
    chain, tiles = schedule.chain, " ".join(f"{a}={t}" for a, t in schedule.tiles)
    first = f"{identifier(chain.name)} as {schedule.expression}, tiles {tiles}"
    for a in chain.axes:
        if isinstance(a.extent, Bounds):
            first += f", {a.name} from {a.extent.low} to {a.extent.high}"
    if schedule.split is not None:
        first += f", {schedule.split.axis} in {schedule.parts} parts"
    operators = [f"#   {line}" for o in chain.operators for line in _broken(str(o))]
    return [*(f"# {line.strip()}" for line in _broken(first)), "#", *operators, ""]


def _broken(words: str) -> list[str]:
    """A comment's text, broken at spaces."""
    lines = [""]
    for word in words.split(" "):
        if len(lines[-1]) + len(word) > LINE - 6:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _workspace(schedule: Schedule, lowering: TritonKnobs) -> tuple[Workspace, ...]:
    """The workspaces of a split: the partial results of each reduction; and, where the last block
    combines, a counter of parts that have ended."""
    layout, workspaces = TileLayout(schedule), []
    for s, _ in statements(schedule.body):
        if isinstance(s, StorePartial):
            one = layout.workspace(s.buffer)
            size = schedule.parts * math.prod(int(d) for d in one.shape)
            if size >= 1 << 31:
                raise Illegal(f"what the parts share of '{s.buffer}' is counted in 32 bits")
            workspaces.append(Workspace(one.name, one.dtype, size))
    if workspaces and lowering.combine == "last":
        blocks = math.prod(trips for _, trips in schedule.grid)
        workspaces.append(Workspace(layout.unused_name("ended"), "int32", blocks, zero=True))
    return tuple(workspaces)


# --- kernels


def _one(layout: TileLayout, name: str, called: Called) -> KernelLines:
    frame, body = _frame(layout.schedule, layout), block_body(layout.schedule.body)
    lines = block(frame, body, handover(called, body))
    return _kernel(frame, lines, name, called, called.pointers)


def _local(layout: TileLayout, name: str, called: Called) -> KernelLines:
    """The kernel that runs the parts, each of which ends by storing its partial results."""
    parts, _ = _phases(layout.schedule)
    frame = _frame(layout.schedule, _alone(layout, parts.body), parts)
    return _kernel(frame, block(frame, parts.body), name, called)


def _global(layout: TileLayout, name: str, called: Called) -> KernelLines:
    """The kernel that runs the statements after the parts."""
    _, rest = _phases(layout.schedule)
    frame = _frame(layout.schedule, _alone(layout, rest))
    return _kernel(frame, block(frame, rest), name, called)


def _alone(layout: TileLayout, body: tuple[Statement, ...]) -> TileLayout:
    """The layout of a kernel in which these statements are all."""
    return replace(layout, schedule=replace(layout.schedule, body=body))


def _last(layout: TileLayout, name: str, called: Called) -> KernelLines:
    """One kernel: the parts, and in the block that ends last the statements after them.

    The barrier puts the stores of all threads before the count, whose order puts them before what
    the last block loads.
    """
    parts, rest = _phases(layout.schedule)
    frame = _frame(layout.schedule, layout, parts)
    lines = block(frame, parts.body)
    counter = f"{frame.pointer(called.pointers[-1])} + pid"
    before = frame.named("part", "parts_before")
    to = frame.dialect
    lines += [
        f"{TAB}{to.moving('debug_barrier')}()",
        f'{TAB}{before} = {to.moving("atomic_add")}({counter}, 1, sem="acq_rel")',
        f"{TAB}if {before} == {layout.schedule.parts - 1}:",
        f"{TAB}{TAB}{to.word('store')}({counter}, 0)",
    ]
    frame.depth += 1
    lines += block(frame, rest)
    frame.depth -= 1
    return _kernel(frame, lines, name, called)


def _phases(schedule: Schedule) -> tuple[Loop, tuple[Statement, ...]]:
    """The loop over parts, and what follows it."""
    first, *rest = block_body(schedule.body)
    if not isinstance(first, Loop) or first.kind != "split":
        raise Illegal("a statement stands before the loop over parts")
    return first, tuple(rest)


# --- what surrounds the statements


def _frame(schedule: Schedule, layout: TileLayout, parts: Loop | None = None) -> Frame:
    """The frame of a block, with the axes that the grid sets and those of one iteration."""
    split = parts.axis if parts is not None else None
    frame = Frame(schedule, layout, _part(schedule, split) if split is not None else None)
    frame.at |= dict.fromkeys((a for a, n in schedule.grid if n > 1), None)
    once = (a.name for a in schedule.chain.axes if schedule.trips(a.name) == 1 and a.name != split)
    frame.at |= dict.fromkeys(once, 0)
    return frame


def _part(schedule: Schedule, a: str) -> Part:
    span, size = schedule.span(a) * schedule.tile(a), schedule.chain.extent(a)
    words = str(span) if isinstance(size, int) else f"{a}_span"
    return Part(a, f"{a}_first", f"{a}_first + {words}", span * schedule.parts == size)


def _kernel(
    frame: Frame, lines: list[str], name: str, called: Called, always: Sequence[str] = ()
) -> KernelLines:
    """The function around these lines: it takes the pointers, maps and extents that they mention,
    and those pointers that it always takes, but of tensors that come through maps alone."""
    chain, schedule = frame.schedule.chain, frame.schedule
    for a in reversed([a.name for a in chain.axes]):
        lines = frame.define(a, lines) if a in frame.at else lines
    lines = [*identify(frame, lines), *waited(called), *lines]
    mapped = [n for n in frame.layout.maps if mentions(lines, frame.map(n))]
    maps = tuple(frame.layout.maps[n] for n in mapped)
    kept = {*always} - {m.tensor for m in maps}
    taken = tuple(p for p in called.pointers if p in kept or mentions(lines, frame.pointer(p)))
    extents = tuple(
        a.name for a in chain.axes
        if isinstance(a.extent, Bounds) and mentions(lines, frame.size(a.name))
    )  # fmt: skip
    if frame.layout.wide:
        lines = [*(f"{TAB}{a}_size = {a}_size{frame.wide}" for a in extents), *lines]
    arguments = [*map(frame.pointer, taken), *map(frame.map, mapped), *map(frame.size, extents)]
    grid = ((a if frame.run_time(a) else chain.size(a), schedule.tile(a)) for a, _ in schedule.grid)
    parts = schedule.parts if frame.split is not None else 1
    launch = Launch(name, taken, extents, tuple(grid), parts, maps)
    return ["@triton.jit", *call(0, f"def {name}", arguments, ":"), *lines], launch
