"""A schedule as Triton source: one kernel, statement by statement, as a person would write it.

Every axis takes one of two forms. An axis with one position a turn is a number. Any other is a
vector of positions, as wide as Triton demands: the next power of two, and 16 at least where a
matrix product uses it; `n_in` masks what the width or the last turn adds, where it adds anything.
A loop over an axis of which a buffer keeps every tile is written out turn by turn, so that each
tile is a variable of its own (`E_0`, `E_1`) and stays in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from mcfuser.codegen.triton.frame import LINE, TAB, Frame, call, mentions
from mcfuser.codegen.triton.layout import Layout, touched
from mcfuser.codegen.triton.statement import write
from mcfuser.codegen.triton.tile import TERM, UNARY, Value, apply, literal
from mcfuser.expr import Call, Const, Expr, Index, text
from mcfuser.space.schedule import (
    LOWEST,
    Compute,
    Illegal,
    Init,
    Loop,
    Schedule,
    Statement,
    loops,
    statements,
)

TURNS = 64
"""The most turns that are written out: more tiles than that fit in no register file."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """What belongs to Triton's compiler: warps of a block, stages of a pipelined loop."""

    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's text and how to launch it.

    `parameters` are the tensors whose pointers it takes, the chain's inputs and then its outputs,
    `dtypes` theirs; it writes the last `written` of them; `grid` counts blocks along x, y and z.
    """

    text: str
    name: str
    parameters: tuple[str, ...]
    dtypes: tuple[str, ...]
    written: int
    grid: tuple[int, int, int]
    warps: int
    stages: int


DEFAULT = Lowering()


def generate(schedule: Schedule, name: str, lowering: Lowering = DEFAULT) -> Source:
    """The schedule as one Triton kernel of that name.

    Raises Illegal where Triton cannot express it: an extent known at run time only, a tile over
    Triton's 1,048,576 elements, statements beside the grid, an operator without counterpart.
    """
    chain = schedule.chain
    frame = Frame(schedule, Layout(schedule))
    parameters = (*chain.inputs, *chain.outputs)
    signature = call(0, f"def {name}", [frame.pointer(p) for p in parameters], ":")
    lines = _kernel(frame)
    head = [*_header(schedule), "import triton", "import triton.language as tl", ""]
    if mentions(lines, "LOWEST"):
        head += [f"LOWEST = tl.constexpr({LOWEST:.17g})".replace("e+", "e"), ""]
    return Source(
        "\n".join([*head, "", "@triton.jit", *signature, *lines]) + "\n",
        name,
        parameters,
        tuple(chain.tensor(p).dtype for p in parameters),
        len(chain.outputs),
        (math.prod(trips for _, trips in schedule.grid), 1, 1),
        lowering.warps,
        lowering.stages,
    )


def _header(schedule: Schedule) -> list[str]:
    chain, tiles = schedule.chain, " ".join(f"{a}={t}" for a, t in schedule.tiles)
    first = f"# {chain.name} as {schedule.expression}, tiles {tiles}"
    return [first, "#", *(f"#   {line}" for o in chain.operators for line in _broken(str(o))), ""]


def _broken(words: str) -> list[str]:
    """A comment's text, broken at spaces."""
    lines = [""]
    for word in words.split(" "):
        if len(lines[-1]) + len(word) > LINE - 6:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _kernel(frame: Frame) -> list[str]:
    schedule, body = frame.schedule, frame.schedule.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "grid":
        body = body[0].body
    if any(loop.kind == "grid" for loop in loops(body)):
        raise Illegal("a statement stands beside the loops that form the grid")
    named = [a.name for a in schedule.chain.axes]
    frame.at |= dict.fromkeys((a for a, n in schedule.grid if n > 1), None)
    frame.at |= dict.fromkeys((a for a in named if schedule.trips(a) == 1), 0)
    lines = _block(frame, body)
    for a in reversed(named):
        lines = frame.define(a, lines) if a in frame.at else lines
    return [*_identify(frame, lines), *lines]


def _identify(frame: Frame, lines: Sequence[str]) -> list[str]:
    """From the block's number to its turn of every grid loop, the innermost one fastest."""
    found, divisor = [], 1
    grid = [(a, n) for a, n in frame.schedule.grid if n > 1]
    for i, (a, trips) in reversed(list(enumerate(grid))):
        turn = f"pid // {divisor}" if divisor > 1 else "pid"
        turn += f" % {trips}" if i else ""
        divisor *= trips
        tile = frame.schedule.tile(a)
        if mentions(lines, frame.start(a)):
            step = f" * {tile}" if tile > 1 else ""
            found.append(f"{TAB}{frame.start(a)} = {turn}{step}")
    wide = ".to(tl.int64)" if frame.layout.wide else ""
    return [f"{TAB}pid = tl.program_id(0){wide}", *found] if found else []


# --- blocks and loops


def _block(frame: Frame, body: Sequence[Statement]) -> list[str]:
    lines: list[str] = []
    for i, s in enumerate(body):
        if isinstance(s, Loop):
            lines += _loop(frame, s)
        elif isinstance(s, Init) and _overwritten(frame, s.buffer, body[i + 1 :]):
            frame.fresh.add(s.buffer)
        else:
            lines += _turns(frame, _unsettled(frame, s), partial(write, frame, s))
    return lines


def _overwritten(frame: Frame, name: str, rest: Sequence[Statement]) -> bool:
    """The buffer is next written by one whole reduction, so its initial value is not needed."""
    for s in rest:
        inside = [t for t, _ in statements(s.body)] if isinstance(s, Loop) else [s]
        if any(name in touched(t) for t in inside):
            return (
                isinstance(s, Compute)
                and touched(s).count(name) == 1
                and all(a in frame.at for a in s.operator.over)
            )
    return False


def _unsettled(frame: Frame, s: Statement) -> tuple[str, ...]:
    """Axes of which a statement covers every tile, with no loop of their own around it."""
    found = [a for name in touched(s) for a in frame.layout.kept(name)]
    if isinstance(s, Compute):
        found += s.operator.related
    return tuple(dict.fromkeys(a for a in found if a not in frame.at))


def _loop(frame: Frame, s: Loop) -> list[str]:
    if frame.schedule.trips(s.axis) == 1:
        return _block(frame, s.body)
    if frame.layout.written_out(s):
        if s.lo is not None or s.hi is not None:
            raise Illegal(f"the loop over '{s.axis}' has bounds, yet must be written out")
        return _turns(frame, (s.axis,), partial(_block, frame, s.body), comment=True)
    frame.at[s.axis] = None
    head = f"{TAB * frame.depth}for {_range(frame, s)}:"
    frame.depth += 1
    lines = frame.define(s.axis, _block(frame, s.body))
    frame.depth -= 1
    del frame.at[s.axis]
    return [head, *lines]


def _range(frame: Frame, s: Loop) -> str:
    """The loop's variable and range. Bounds count turns; axes in them stand for the first
    position of the turn at hand."""
    tile, size = frame.schedule.tile(s.axis), frame.schedule.chain.size(s.axis)
    first = "0" if s.lo is None else _position(frame, s.lo, tile)
    last = str(size) if s.hi is None else f"tl.minimum({_position(frame, s.hi, tile)}, {size})"
    step = f", {tile}" if tile > 1 else ""
    return f"{frame.start(s.axis)} in range({first}, {last}{step})"


def _position(frame: Frame, turn: Expr, tile: int) -> str:
    found = _whole(frame, turn)
    return f"{found.within(TERM)} * {tile}" if tile > 1 else found.text


def _whole(frame: Frame, e: Expr) -> Value:
    """An expression in whole numbers, `floor(a / b)` as a division without remainder."""
    if isinstance(e, Const) and isinstance(e.value, int):
        return literal(e.value)
    if isinstance(e, Index):
        return Value(frame.start(e.axis), (), "int32")
    scope = frame.scope("bound", (), [])
    if isinstance(e, Call) and e.op in ("add", "sub", "mul", "max", "min"):
        return apply(e.op, [_whole(frame, x) for x in e.args], scope)
    if isinstance(e, Call) and e.op == "floor" and isinstance(e.args[0], Call):
        quotient = e.args[0]
        if quotient.op == "div":
            a, b = (_whole(frame, x) for x in quotient.args)
            return Value(f"{a.within(TERM)} // {b.within(UNARY)}", (), "int32", TERM)
    raise Illegal(f"the bound '{text(e)}' of a loop is not a whole number")


def _turns(
    frame: Frame, names: Sequence[str], make: Callable[[], list[str]], comment: bool = False
) -> list[str]:
    """Every turn of some axes, written out one after the other."""
    counts = [frame.schedule.trips(a) for a in names]
    if math.prod(counts) > TURNS:
        raise Illegal(f"{math.prod(counts)} tiles along {', '.join(names)} fit no register file")
    found: list[str] = []
    for turn in product(*(range(n) for n in counts)):
        frame.at |= dict(zip(names, turn, strict=True))
        lines = make()
        for a in reversed(names):
            lines = frame.define(a, lines)
        if comment:
            found.append(f"{TAB * frame.depth}# {names[0]}: turn {turn[0] + 1} of {counts[0]}")
        found += lines
    for a in names:
        del frame.at[a]
    return found
