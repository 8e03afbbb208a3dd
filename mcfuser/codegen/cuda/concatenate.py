"""Concatenations of which several pieces lie behind each other in turn, on a GPU: a thread copies
sixteen bytes, of the channels of one position where pictures have these last.

TVM's own kernel chooses between parts in every lane, and so copies elements one by one: 64 channels
of 256 x 256 positions, of two parts, take 17.6 us in float16 (H200, 2026-11-29), 17 MB. Parts that
are slices are read where they are cut out of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax

from mcfuser.chain import BYTES
from mcfuser.codegen.cuda.kernel import GivenArray, SourceOperator, for_each
from mcfuser.codegen.cuda.places import sliced_along
from mcfuser.codegen.shapes import counted

SMALL = 1 << 15
"""Elements of the result below which it is TVM's, which computes parts where it copies them."""
MOST = 32
"""The most parts: each thread asks for its own one after the other."""
VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned"}
"""Types of so many bytes."""


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part of a concatenation, and the array that it is read from: runs of `run` elements, each
    `stride` elements behind the one before, the first from element `start` on. A part that is no
    slice is one run. `given` are the extents of the array."""

    array: relax.Expr
    given: tuple[int, ...]
    extents: tuple[int, ...]
    run: int
    stride: int
    start: int

    @property
    def is_whole(self) -> bool:
        """Whether the part lies in one piece."""
        return self.run == math.prod(self.extents)


def copied_parts(
    call: relax.Call, bound: Callable[[relax.Var], relax.Expr | None]
) -> tuple[CopiedPart, ...] | None:
    """The parts of a concatenation with the arrays that they are read from; None where extents are
    unknown. `bound` gives what a variable stands for."""
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
        return None
    found = [_part(part, bound) for part in parts.fields]
    known = [part for part in found if part is not None]
    return tuple(known) if len(known) == len(found) else None


def _part(part: relax.Expr, bound: Callable[[relax.Var], relax.Expr | None]) -> CopiedPart | None:
    extents = counted(part.ty.shape)
    if extents is None:
        return None
    made = _behind_views(part, bound)
    if isinstance(made, relax.Call) and made.op.name == "relax.strided_slice":
        along, given = sliced_along(made), counted(made.args[0].ty.shape)
        if along is not None and given is not None:
            axis, first = along
            inner = math.prod(given[axis + 1 :])
            run = int(made.ty.shape.values[axis]) * inner
            return CopiedPart(made.args[0], given, extents, run, given[axis] * inner, first * inner)
    size = math.prod(extents)
    return CopiedPart(part, extents, extents, size, size, 0)


def _behind_views(
    part: relax.Expr, bound: Callable[[relax.Var], relax.Expr | None]
) -> relax.Expr | None:
    """What a value stands for, or what it is a view of whose elements are the same."""
    made = bound(part) if isinstance(part, relax.Var) else part
    if isinstance(made, relax.Call) and made.op.name in _SAME_ELEMENTS:
        return _behind_views(made.args[0], bound)
    return made


_SAME_ELEMENTS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
"""Views whose elements are in the order of their argument's."""


def joined(call: relax.Call, parts: Sequence[CopiedPart]) -> SourceOperator | None:
    """The kernel of a concatenation, which takes the arrays of its parts; None where these lie
    behind each other in one piece each (mcfuser.codegen.cuda.beside), where it is small, and where
    no two elements of a part are moved at once."""
    dtype, whole = str(call.ty.dtype), counted(call.ty.shape)
    if whole is None or dtype not in BYTES or len(parts) > MOST:
        return None
    at = int(call.attrs.axis) % len(whole)
    rows, size = math.prod(whole[:at]), BYTES[dtype]
    lengths = [math.prod(part.extents[at:]) for part in parts]
    steps = (n for part in parts for n in (part.run, part.stride, part.start))
    width = math.gcd(max(VECTORS) // size, *lengths, *steps)
    in_place = rows == 1 and any(part.is_whole for part in parts)
    if in_place or math.prod(whole) < SMALL or width == 1 or width * size not in VECTORS:
        return None
    arrays = [GivenArray(f"x{i}", part.given, dtype) for i, part in enumerate(parts)]
    copied = _copied(parts, lengths, width, VECTORS[width * size])
    step = for_each("copy", rows * sum(lengths) // width, copied)
    return SourceOperator("concatenate", (*arrays, GivenArray("out", whole, dtype)), 1, "", (step,))


def _copied(
    parts: Sequence[CopiedPart], lengths: Sequence[int], width: int, vector: str
) -> list[str]:
    """The statements that copy vector `i`, of `width` elements, of a result to whose rows parts
    give so many elements."""
    total = sum(lengths) // width
    lines = [
        f"const unsigned row = i / {total}u, place = i % {total}u;",
        f"{vector}* const to = reinterpret_cast<{vector}*>(out) + i;",
    ]
    first = 0
    for number, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        vectors = length // width
        head = f"if (place < {first + vectors}u) " if number < len(parts) - 1 else ""
        back = f" - {first}u" if first else ""
        read = f"reinterpret_cast<const {vector}*>(x{number})"
        place = _place(part, f"row * {vectors}u + place{back}", width)
        lines.append(f"{'else ' if number else ''}{head}*to = {read}[{place}];")
        first += vectors
    return lines


def _place(part: CopiedPart, vector: str, width: int) -> str:
    """Where a vector of a part is in the part's array, counted in vectors."""
    if part.is_whole and not part.start:
        return vector
    run, stride, start = (n // width for n in (part.run, part.stride, part.start))
    return f"({vector}) / {run}u * {stride}u + ({vector}) % {run}u + {start}u"
