"""Products of a warp group in Gluon: tiles in shared memory, waits for them, what is in flight."""

from __future__ import annotations

from collections.abc import Sequence

from mcfuser.codegen.triton.frame import TAB, Frame, call
from mcfuser.codegen.triton.tile import shape_text
from mcfuser.lowering.triton.hopper.groups import WarpGroups
from mcfuser.lowering.triton.hopper.rings import Ring
from mcfuser.space.statement import Compute, Illegal

NOW = ("slot", "phase")
BEFORE = ("slot_before", "phase_before")
"""Variables of the current iteration's tiles, and of the previous iteration's, which the deferred
products read."""


def multiply(frame: Frame, s: Compute, a: str, b: str) -> list[str]:
    """The lines that begin a product of the operands `a` and `b` and wait for it. Deferred products
    begin right after it, and are still running when it has ended."""
    lines = _begin(frame, s, operand(frame, s, a, 0), operand(frame, s, b, 1))
    deferred, frame.deferred = frame.deferred, ()
    return lines + begin_deferred(frame, deferred) + _end(frame, s, len(deferred))


def begin_deferred(frame: Frame, deferred: Sequence[Compute]) -> list[str]:
    """The lines that begin the products of the previous iteration, with the left operands that it
    computed."""
    lines: list[str] = []
    for s in deferred:
        words = frame.tile(of(frame).layout.dots[s.buffer].right.tensor)
        right = operand(frame, s, words, 1, deferred=True)
        lines += _begin(frame, s, left_name(frame, s), right, deferred=True)
    return lines


def end_deferred(frame: Frame, deferred: Sequence[Compute]) -> list[str]:
    """The lines that wait for the deferred products, in the order in which they began."""
    lines: list[str] = []
    for i, s in enumerate(deferred):
        lines += _end(frame, s, len(deferred) - 1 - i, deferred=True)
    return lines


def _begin(frame: Frame, s: Compute, a: str, b: str, deferred: bool = False) -> list[str]:
    """The lines that wait for the operands of a product, and begin it."""
    lines, name = list[str](), frame.tile(s.buffer)
    for ring in _rings(frame, s):
        if ring.looped and (ring.buffer, deferred) not in frame.arrived:
            frame.arrived.add((ring.buffer, deferred))
            lines += arrived(frame, ring, deferred)
    args = [a, b, name]
    if s.buffer in frame.fresh:
        shape = shape_text([frame.layout.width(x) for x in frame.layout.space(s.buffer)])
        args[2:] = [f"gl.zeros({shape}, gl.float32, TILE)", "use_acc=False"]
    head = f"{name} = hopper.warpgroup_mma"
    return lines + call(frame.depth, head, [*args, "is_async=True"])


def _end(frame: Frame, s: Compute, flying: int, deferred: bool = False) -> list[str]:
    """The lines that wait for a product while `flying` later ones may still run, and that release
    tiles which the iteration does not need any more."""
    pad, names = TAB * frame.depth, [frame.tile(s.buffer)]
    if deferred:
        names.append(left_name(frame, s))
    taken = ", ".join(names) + ("," if len(names) == 1 else "")
    lines = [f"{pad}{', '.join(names)} = hopper.warpgroup_mma_wait({flying}, deps=({taken}))"]
    groups = of(frame)
    for ring in _rings(frame, s):
        if ring.looped and groups.readers(ring.buffer)[-1] == s.buffer:
            at = place(groups, ring, (BEFORE if deferred else NOW)[0])
            lines.append(f"{pad}mbarrier.arrive({empty(frame, ring)}.index({at}), count=1)")
    return lines


def operand(frame: Frame, s: Compute, words: str, side: int, deferred: bool = False) -> str:
    """The text of an operand of a product: a loaded tile is in a ring; a computed one is in
    registers, whose layout is converted."""
    roles = of(frame).layout.dots[s.buffer]
    name = (roles.left, roles.right)[side].tensor
    ring = of(frame).rings.get(name)
    if ring is None:
        return f"gl.convert_layout({words}, LEFT)"
    if words != frame.tile(name):
        raise Illegal(f"'{name}' is changed before it enters a product")
    at = place(of(frame), ring, (BEFORE if deferred else NOW)[0])
    return flat(frame, ring, at) + (".permute((1, 0))" if ring.flipped else "")


def left_name(frame: Frame, s: Compute) -> str:
    """The variable that holds the left operand of a deferred product."""
    return frame.named("left", f"{s.buffer}_left")


def put(frame: Frame, buffer: str, value: str, at: Sequence[str]) -> list[str]:
    """The lines that store an output's tile through a tensor map, from the place in shared memory
    of an operand that is not needed any more."""
    groups = of(frame)
    name, _ = groups.stored[buffer]
    ring, pad = groups.rings[name], TAB * frame.depth
    here = f"{tile(frame, ring)}.index({place(groups, ring)})"
    return [
        *call(frame.depth, f"{flat(frame, ring, place(groups, ring))}.store", [value]),
        f"{pad}hopper.fence_async_shared()",
        *call(frame.depth, "put", [frame.map(buffer), f"[{', '.join(at)}]", here]),
        f"{pad}tma.store_wait(0)",
    ]


# --- rings


def arrived(frame: Frame, ring: Ring, deferred: bool = False) -> list[str]:
    """The line that waits until a tile is filled."""
    slot, phase = BEFORE if deferred else NOW
    at = place(of(frame), ring, slot)
    words = f"{full(frame, ring)}.index({at}), {phase if ring.looped else 0}"
    return [f"{TAB * frame.depth}mbarrier.wait({words})"]


def place(groups: WarpGroups, ring: Ring, slot: str = NOW[0]) -> str:
    """The number, as text, of the tile of a ring that a warp group uses in an iteration."""
    if not ring.looped:
        return "group" if ring.own else "0"
    return f"{slot} * {groups.count} + group" if ring.own else slot


def flat(frame: Frame, ring: Ring, at: str) -> str:
    """A tile as a matrix."""
    one = f"{tile(frame, ring)}.index({at})"
    return f"{one}.reshape({[*ring.shape]})" if len(ring.map.box) > 2 else one


def counted(frame: Frame, stages: int, deferred: bool = False) -> list[str]:
    """The lines that compute the slot and the phase of the rings' tiles, of the current iteration
    or of the previous one."""
    pad, iteration = TAB * frame.depth, "(iteration - 1)" if deferred else "iteration"
    slot, phase = BEFORE if deferred else NOW
    return [f"{pad}{slot} = {iteration} % {stages}", f"{pad}{phase} = {iteration} // {stages} % 2"]


def tile(frame: Frame, ring: Ring) -> str:
    return frame.named("ring", f"{ring.buffer}_tile")


def full(frame: Frame, ring: Ring) -> str:
    return frame.named("ring", f"{ring.buffer}_full")


def empty(frame: Frame, ring: Ring) -> str:
    return frame.named("ring", f"{ring.buffer}_empty")


def names(frame: Frame, ring: Ring) -> Sequence[str]:
    """The names of a ring's tiles and barriers, which functions take as arguments."""
    both = (tile(frame, ring), full(frame, ring))
    return (*both, empty(frame, ring)) if ring.looped else both


def _rings(frame: Frame, s: Compute) -> list[Ring]:
    groups = of(frame)
    roles = groups.layout.dots[s.buffer]
    both = dict.fromkeys((roles.left.tensor, roles.right.tensor))
    return [groups.rings[n] for n in both if n in groups.rings]


def of(frame: Frame) -> WarpGroups:
    """The warp groups of a frame; the frame must be that of a warp group."""
    assert frame.groups is not None
    return frame.groups
