"""The global phase of a split: the partial results of all parts are reduced to one tile."""

from __future__ import annotations

from mcfuser.chain import lowest
from mcfuser.codegen.triton.frame import TAB, Frame
from mcfuser.codegen.triton.memory import fetch, part_pointers
from mcfuser.codegen.triton.tile import Scope, TileValue, cast, spread, value
from mcfuser.expr import Read
from mcfuser.space.statement import Combine

UNROLLED = 16
"""The most parts whose loads are all in flight at once."""


def combine(frame: Frame, s: Combine) -> list[str]:
    """The lines of a reduction over the parts, in which each part's value is repaired first."""
    name, space = frame.tile(s.buffer), frame.layout.space(s.buffer)
    largest = s.operator.reduce == "max"
    pad, parts = TAB * frame.depth, frame.schedule.parts
    to = frame.dialect
    kind = to.word("static_range") if parts <= UNROLLED else "range"
    head = [
        *(
            line
            for n in (s.buffer, *(r.new for r in s.repairs))
            for line in part_pointers(frame, n)
        ),
        f"{pad}{name} = {frame.full(s.buffer, _identity(frame, s) if largest else 0.0)}",
        f"{pad}for peer in {kind}({parts}):",
    ]
    frame.depth += 1
    lines, step = _repaired(frame, s)
    words = spread(to, cast(to, step, frame.dtype(s.buffer)), space, frame.layout.width).text
    pad = TAB * frame.depth
    more = f"{name} = {to.word('maximum')}({name}, {words})" if largest else f"{name} += {words}"
    lines.append(f"{pad}{more}")
    frame.depth -= 1
    return [*head, *lines]


def _identity(frame: Frame, s: Combine) -> float:
    return lowest(frame.schedule.chain.tensor(s.operator.out).dtype)


def _repaired(frame: Frame, s: Combine) -> tuple[list[str], TileValue]:
    """The lines that load a part's value and the moving reductions of that part, and the value
    after its repairs."""
    name_of_part = frame.named("part", f"{s.buffer}_part")
    lines = fetch(frame, s.buffer, "peer", name_of_part)
    space = frame.layout.space(s.buffer)
    step = TileValue(name_of_part, space, frame.dtype(s.buffer))
    for r in s.repairs:
        old = frame.named("part", f"{r.new}_part")
        lines += fetch(frame, r.new, "peer", old)
        known = {
            s.buffer: step,
            r.old: TileValue(old, frame.layout.space(r.new), frame.dtype(r.new)),
        }

        def read(e: Read, known: dict[str, TileValue] = known) -> TileValue:
            return known[e.tensor] if e.tensor in known else frame.read(e)

        def name(words: str, kept: list[str] = lines) -> str:
            return frame.part(f"{s.buffer}_step_{len(kept)}", words, kept)

        step = value(r.h, Scope(frame.dialect, read, frame.position, space, name))
    return lines, step
