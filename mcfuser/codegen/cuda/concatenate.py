"""Concatenations of which several pieces lie behind each other in turn, on a GPU: a thread copies
sixteen bytes, of the channels of one position where pictures have these last.

TVM's own kernel chooses between parts in every lane, and so copies elements one by one: 64 channels
of 256 x 256 positions, of two parts, take 17.6 us in float16 (H200, 2026-11-29), 17 MB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from mcfuser.chain import BYTES
from mcfuser.codegen.cuda.kernel import GivenArray, SourceOperator, for_each
from mcfuser.codegen.shapes import counted

SMALL = 1 << 15
"""Elements of the result below which it is TVM's, which computes parts where it copies them."""
MOST = 32
"""The most parts: each thread asks for its own one after the other."""
VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned"}
"""Types of so many bytes."""


def joined(call: relax.Call) -> SourceOperator | None:
    """The kernel of a concatenation of fixed extents; None where all parts are whole and behind
    each other (mcfuser.codegen.cuda.beside), where it is small, and where no two elements of a part
    are moved at once."""
    (parts,), axis, dtype = call.args, call.attrs.axis, str(call.ty.dtype)
    if not isinstance(parts, relax.Tuple) or axis is None or dtype not in BYTES:
        return None
    shapes = [s for p in parts.fields if (s := counted(p.ty.shape)) is not None]
    whole = counted(call.ty.shape)
    if whole is None or not len(shapes) == len(parts.fields) <= MOST:
        return None
    at = int(axis) % len(whole)
    rows, size = math.prod(whole[:at]), BYTES[dtype]
    lengths = [math.prod(s[at:]) * size for s in shapes]
    width = math.gcd(max(VECTORS), *lengths)
    if rows == 1 or math.prod(whole) < SMALL or width <= size or width not in VECTORS:
        return None
    arrays = [GivenArray(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
    copied = _copied([n // width for n in lengths], VECTORS[width])
    step = for_each("copy", rows * sum(lengths) // width, copied)
    return SourceOperator("concatenate", (*arrays, GivenArray("out", whole, dtype)), 1, "", (step,))


def _copied(widths: Sequence[int], vector: str) -> list[str]:
    """The statements that copy vector `i` of a result, to whose rows each part gives so many."""
    total = sum(widths)
    lines = [
        f"const unsigned row = i / {total}u, place = i % {total}u;",
        f"{vector}* const to = reinterpret_cast<{vector}*>(out) + i;",
    ]
    first = 0
    for number, width in enumerate(widths):
        part = f"reinterpret_cast<const {vector}*>(x{number})"
        head = f"if (place < {first + width}u) " if number < len(widths) - 1 else ""
        back = f" - {first}u" if first else ""
        lines.append(
            f"{'else ' if number else ''}{head}*to = {part}[row * {width}u + place{back}];"
        )
        first += width
    return lines
