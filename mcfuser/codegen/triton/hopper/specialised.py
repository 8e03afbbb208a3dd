"""A warp-specialised kernel in Gluon: a function that loads, one that computes, and the kernel that
sets up the rings and barriers that they share.

The loader runs the loop and fills the rings; each warp group runs it too, and uses their tiles.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mcfuser.codegen.triton.called import Called, waited
from mcfuser.codegen.triton.compute import computing
from mcfuser.codegen.triton.dialect import GLUON
from mcfuser.codegen.triton.frame import LINE, TAB, Frame, call, mentions
from mcfuser.codegen.triton.grid import identify
from mcfuser.codegen.triton.hopper.gluon import prelude
from mcfuser.codegen.triton.hopper.warpgroup import counted, empty, full, names, place, tile
from mcfuser.codegen.triton.loop import edge, loop_range
from mcfuser.codegen.triton.memory import corner
from mcfuser.codegen.triton.source import Launch
from mcfuser.lowering.triton.hopper.feasible import check
from mcfuser.lowering.triton.hopper.groups import LOADER, REGISTERS, WarpGroups
from mcfuser.lowering.triton.hopper.rings import Ring
from mcfuser.lowering.triton.hopper.tensor_map import dimensions

BARRIERS = "mbarrier.MBarrierLayout()"


def specialised(groups: WarpGroups, name: str, called: Called) -> tuple[list[str], Launch]:
    """The functions' lines, all of them, and how to launch the kernel.

    Raises Illegal where warps cannot divide the work so.
    """
    check(groups)
    before, after = groups.around
    own = _placed(
        Frame(groups.layout.schedule, groups.layout, dialect=GLUON, groups=groups), groups
    )
    whole = _placed(Frame(groups.whole, groups.layout, dialect=GLUON, names=own.names), groups)
    start, stop, setting = _ends(whole, groups)
    lines = computing(own, before, after, start, stop)
    a = groups.rows
    moved = f"{TAB}{own.start(a)} = " + ("" if _dead(groups) else f"{own.start(a)} + ")
    lines = [f"{moved}group * {groups.layout.schedule.tile(a)}", *lines]
    loads = _loading(whole, groups, start, stop)
    text, launch = _assembled(whole, groups, setting, lines, loads, name, called)
    return [*prelude(groups, own.arrangements), "", "", *text], launch


def _dead(groups: WarpGroups) -> bool:
    """One block has all rows."""
    return groups.whole.trips(groups.rows) == 1


def _placed(frame: Frame, groups: WarpGroups) -> Frame:
    """The frame with the axes that the grid sets, for a block or for a warp group."""
    schedule = frame.schedule
    frame.at |= {a.name: 0 for a in schedule.chain.axes if schedule.trips(a.name) == 1}
    frame.at |= dict.fromkeys((a for a, n in schedule.grid if n > 1), None)
    frame.at[groups.rows] = 0 if frame.groups is None and _dead(groups) else None
    return frame


def _ends(frame: Frame, groups: WarpGroups) -> tuple[str, str, list[str]]:
    """The first position and the end of the loop, as text, the same for all warps of a block, and
    the lines that compute them."""
    loop, a, lines = groups.loop, groups.loop.axis, list[str]()
    first, last, *_ = loop_range(frame, loop)
    if groups.deferred and loop.lo:
        # a group always runs one iteration, which lies inside the tensors
        size, tile = groups.whole.chain.size(a), groups.whole.tile(a)
        first = f"{frame.dialect.word('minimum')}({first}, {(size - 1) // tile * tile})"
    if not first.isdigit():
        lines.append(f"{TAB}{a}_first = {first}")
        first = f"{a}_first"
    some = all(edge(frame, index, greatest=True).natural for index in loop.hi)
    if groups.deferred and (loop.lo or not some):
        last = f"{frame.dialect.word('maximum')}({last}, {first} + 1)"
    if not last.isdigit():
        lines.append(f"{TAB}{a}_end = {last}")
        last = f"{a}_end"
    return first, last, lines


# --- the loader


def _loading(frame: Frame, groups: WarpGroups, start: str, stop: str) -> list[str]:
    a, n = groups.loop.axis, groups.stages
    lines = [x for r in groups.rings.values() if not r.looped for x in _filled(frame, groups, r)]
    step = str(frame.schedule.tile(a))
    frame.at[a] = None
    lines += [
        f"{TAB}iteration = 0",
        *call(1, f"for {frame.start(a)} in range", [start, stop, step], ":"),
    ]
    frame.depth += 1
    lines += counted(frame, n)
    lines += [x for r in groups.rings.values() if r.looped for x in _filled(frame, groups, r)]
    lines.append(f"{TAB * frame.depth}iteration += 1")
    frame.depth -= 1
    del frame.at[a]
    return lines


def _filled(frame: Frame, groups: WarpGroups, ring: Ring) -> list[str]:
    """The lines that fill one tile of a ring for each warp group, or one tile for all."""
    depth, lines = frame.depth, list[str]()
    if ring.own:
        lines.append(f"{TAB * depth}for group in gl.static_range({groups.count}):")
        depth += 1
    at = place(groups, ring)
    if ring.looped:
        wait = f"mbarrier.wait({empty(frame, ring)}.index({at}), 1 - phase)"
        lines.append(f"{TAB * depth}{wait}")
    bar = f"{full(frame, ring)}.index({at})"
    where = f"[{', '.join(_corner(frame, groups, ring))}]"
    args = [frame.map(ring.buffer), where, bar, f"{tile(frame, ring)}.index({at})"]
    lines.append(f"{TAB * depth}mbarrier.expect({bar}, {ring.size})")
    return lines + call(depth, "fetch", args)


def _corner(frame: Frame, groups: WarpGroups, ring: Ring) -> Iterator[str]:
    load = groups.layout.loads[ring.buffer]
    at, _ = corner(frame, load)
    own = f"group * {groups.layout.schedule.tile(groups.rows)}"
    start = frame.start(groups.rows)
    for words, (*_, index) in zip(at, dimensions(groups.whole.chain, load.read), strict=True):
        if ring.own and index.plain == groups.rows:
            yield own if start == "0" else f"{start} + {own}"
        else:
            yield words


# --- the kernel


def _assembled(
    frame: Frame, groups: WarpGroups, setting: list[str], computes: list[str], loads: list[str],
    name: str, called: Called,
) -> tuple[list[str], Launch]:  # fmt: skip
    chain = groups.whole.chain
    shared = [n for r in groups.rings.values() for n in names(frame, r)]
    mapped = {n: r.map for n, r in groups.rings.items()}
    mapped |= {n: through for n, (_, through) in groups.stored.items()}
    maps = [frame.map(n) for n in mapped]
    taken = tuple(p for p in called.pointers if mentions(computes, frame.pointer(p)))
    iterating = [frame.start(a) for a, t in frame.at.items() if t is None]
    iterating += [line.split()[0] for line in setting]
    tail = [*map(frame.pointer, taken), *maps, *shared]
    scalars = [n for n in dict.fromkeys(iterating) if mentions([*computes, *loads], n)]
    given = [[n for n in (*scalars, *tail) if mentions(body, n)] for body in (computes, loads)]
    arguments = [*map(frame.pointer, taken), *maps]
    inside = [*setting, *_set_up(frame, groups)]
    starts = [*inside, *(f"{TAB}({n})" for n in scalars)]
    body = [*identify(frame, starts), *inside, *waited(called), *_divided(groups, name, *given)]
    lines = [
        "@gluon.jit", *call(0, f"def {name}_loads", given[1], ":"), *loads, "", "",
        "@gluon.jit", *call(0, f"def {name}_rows", ["group: gl.constexpr", *given[0]], ":"),
        *computes, "", "",
        "@gluon.jit", *call(0, f"def {name}", arguments, ":"), *body,
    ]  # fmt: skip
    grid = tuple((chain.size(a), groups.whole.tile(a)) for a, _ in groups.whole.grid)
    launch = Launch(name, taken, (), grid, 1, tuple(mapped.values()))
    return lines, launch


def _set_up(frame: Frame, groups: WarpGroups) -> list[str]:
    """The lines that allocate the tiles and barriers of every ring."""
    lines: list[str] = []
    inits: dict[int, list[str]] = {}
    for ring in groups.rings.values():
        count = (groups.stages if ring.looped else 1) * (groups.count if ring.own else 1)
        box = ring.map.box if len(ring.map.box) > 2 else ring.shape
        of = frame.map(ring.buffer)
        args = [f"gl.{ring.map.dtype}", f"{[count, *box]}", f"{of}.layout"]
        lines += call(1, f"{tile(frame, ring)} = gl.allocate_shared_memory", args)
        for bar in names(frame, ring)[1:]:
            args = ["gl.int64", f"[{count}, 1]", BARRIERS]
            lines += call(1, f"{bar} = gl.allocate_shared_memory", args)
            waited = groups.count if bar == empty(frame, ring) and not ring.own else 1
            inits.setdefault(count, []).append(f"mbarrier.init({bar}.index(each), count={waited})")
    for count, each in inits.items():
        lines.append(f"{TAB}for each in gl.static_range({count}):")
        lines += [f"{TAB}{TAB}{words}" for words in each]
    return [*lines, f"{TAB}hopper.fence_async_shared()"]


def _divided(
    groups: WarpGroups, name: str, computes: Sequence[str], loads: Sequence[str]
) -> list[str]:
    lines = [f"{TAB}gl.warp_specialize(", f"{TAB * 2}["]
    for i in range(groups.count):
        lines += _wrapped(f"({name}_rows, (", f"{i}, {', '.join(computes)})),")
    lines += _wrapped(f"({name}_loads, (", f"{', '.join(loads)})),")
    warps = [4] * (groups.count - 1) + [1]
    registers = [REGISTERS[groups.count]] * (groups.count - 1) + [LOADER]
    return [*lines, f"{TAB * 2}],", f"{TAB * 2}{warps},", f"{TAB * 2}{registers},", f"{TAB})"]


def _wrapped(head: str, words: str) -> list[str]:
    pad = TAB * 3
    if len(f"{pad}{head}{words}") <= LINE:
        return [f"{pad}{head}{words}"]
    broken = textwrap.wrap(words, LINE - len(pad) - len(TAB))
    return [f"{pad}{head}", *(f"{pad}{TAB}{line}" for line in broken)]
