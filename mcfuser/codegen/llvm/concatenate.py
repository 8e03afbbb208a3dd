"""Concatenation on a CPU: parts are copied in pieces, which are spread over the cores.

TVM's own loops ask for every element of the result which part it is from: 15 parts of 512 x 28 x 28
elements together take 1,655 us on two cores, and 43 copied (EPYC, AVX2, 2026-11-26).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import relax

from mcfuser.chain import BYTES
from mcfuser.codegen.call import called
from mcfuser.codegen.llvm.written import function_text
from mcfuser.codegen.shapes import fixed
from mcfuser.codegen.tensorir.integer import divided, minus, plus, rest, smaller, times

PIECE = 1 << 13
"""The elements that a core copies at least before it looks for the next piece."""
SMALL = 1 << 14
"""Elements of the result below which it is TVM's, which computes parts where it copies them."""
FEW = 4
"""Parts up to which TVM asks quickly enough, where their rows are short."""
SHORT = 1 << 5
"""Elements of a short row."""
SIZES = {**BYTES, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "uint32": 4, "uint64": 8}
"""Bytes of an element, by its dtype."""


def concatenate(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that put tensors of fixed extents behind each other; None for small ones,
    and for any other call."""
    (parts,) = call.args
    if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
        return None
    shapes = [fixed(p.ty.shape) for p in parts.fields]
    known = [s for s in shapes if s is not None and all(s)]
    if len(known) < len(shapes):
        return None
    axis = int(call.attrs.axis) % len(known[0])
    rows, lengths = math.prod(known[0][:axis]), [math.prod(s[axis:]) for s in known]
    dtype, short = str(call.ty.dtype), sum(lengths) < SHORT * len(lengths)
    if rows * sum(lengths) < SMALL or (short and len(lengths) <= FEW) or dtype not in SIZES:
        return None
    return called(builder, source(known, axis, dtype), "concatenate", parts.fields, call.ty)


def source(shapes: Sequence[tuple[int, ...]], axis: int, dtype: str) -> str:
    """The text of a PrimFunc that puts tensors of these shapes behind each other along an axis."""
    rows, lengths = math.prod(shapes[0][:axis]), [math.prod(s[axis:]) for s in shapes]
    whole = tuple(sum(s[d] for s in shapes) if d == axis else e for d, e in enumerate(shapes[0]))
    given = "".join(f'x{i}_arg: T.Buffer({s}, "{dtype}"), ' for i, s in enumerate(shapes))
    flat = [
        f'x{i}_flat = T.decl_buffer(({rows * n},), "{dtype}", data=x{i}_arg.data)'
        for i, n in enumerate(lengths)
    ]
    parts = [
        _Part(f"x{i}_flat", rows, n, sum(lengths[:i]), sum(lengths)) for i, n in enumerate(lengths)
    ]
    flat.append(f'out_flat = T.decl_buffer(({rows * sum(lengths)},), "{dtype}", data=out_arg.data)')
    body = [f"for r in T.parallel({sum(p.pieces for p in parts)}):"]
    first = 0
    for part in parts:
        last = first + part.pieces
        body.append(f"    if T.And({first} <= r, r < {last}):")
        body += (f"        {line}" for line in _copied(part, minus("r", str(first)), dtype))
        first = last
    return function_text(f'concatenate({given}out_arg: T.Buffer({whole}, "{dtype}"))', flat, body)


@dataclass(frozen=True)
class _Part:
    """A tensor of `rows` times `length` elements, which lie from the element `start` on in rows of
    `stride` elements of the result. A piece is several rows, or a part of one."""

    name: str
    rows: int
    length: int
    start: int
    stride: int

    @property
    def beside(self) -> int:
        """Pieces of a row."""
        return max(1, self.length // PIECE)

    @property
    def below(self) -> int:
        """Rows of a piece."""
        return min(self.rows, max(1, PIECE // self.length))

    @property
    def pieces(self) -> int:
        return self.beside * -(-self.rows // self.below)


def _copied(part: _Part, piece: str, dtype: str) -> Iterator[str]:
    """Copies a piece of a part, given its number: rows, or some elements of one."""
    if part.beside == 1:
        row = plus(times(piece, part.below), "y")
        yield f"for y in range({part.below}):"
        if part.rows % part.below:
            yield f"    if {row} < {part.rows}:"
            yield f"        {_copy(part, row, '0', str(part.length), dtype)}"
        else:
            yield f"    {_copy(part, row, '0', str(part.length), dtype)}"
        return
    size = -(-part.length // part.beside)
    first = times(rest(piece, part.beside), size)
    count = smaller(str(size), minus(str(part.length), first)) if part.length % size else str(size)
    yield _copy(part, divided(piece, part.beside), first, count, dtype)


def _copy(part: _Part, row: str, first: str, count: str, dtype: str) -> str:
    """Copies so many elements of a row, from the first one on."""
    made = plus(plus(times(row, part.stride), str(part.start)), first)
    given = plus(times(row, part.length), first)
    places = f"T.address_of(out_flat[{made}]), T.address_of({part.name}[{given}])"
    size = times(count, SIZES[dtype])
    return f'T.evaluate(T.call_extern("handle", "memcpy", {places}, T.int64({size})))'
