"""Padding with a number on a CPU: rows are copied whole, and the rest is filled.

TVM's own loops decide for every element whether it is padding, which makes no vector code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tvm import relax, tirx

from mcfuser.codegen.tensorir.build import parse_function
from mcfuser.codegen.tensorir.integer import divided, minus, plus, rest, times

SMALL = 1 << 14
"""Elements below which one core writes them all: to wake another one costs more."""


def pad(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """A call of the loops that pad a tensor of fixed extents with a number; None for any other."""
    x = call.args[0]
    if str(call.attrs.pad_mode) != "constant" or not isinstance(x.ty.shape, relax.ShapeExpr):
        return None
    extents = [d.value for d in x.ty.shape.values if isinstance(d, tirx.IntImm)]
    width = [int(w) for w in call.attrs.pad_width]
    if len(extents) != len(x.ty.shape.values) or not extents or min(width) < 0:
        return None
    dtype, value = str(x.ty.dtype), float(call.attrs.pad_value)
    function = parse_function(source(extents, width, value, dtype)).without_attr("global_symbol")
    function = function.with_attrs(
        {"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True}
    )
    return relax.call_tir(builder.add_func(function, "pad"), [x], call.ty)


def source(extents: Sequence[int], width: Sequence[int], value: float, dtype: str) -> str:
    """The text of a PrimFunc that pads a tensor with `value`; `width` has the elements before and
    after each dimension in turn."""
    before, after = width[::2], width[1::2]
    padded = [b + e + a for b, e, a in zip(before, extents, after, strict=True)]
    rows, row, inner = math.prod(padded[:-1]), padded[-1], extents[-1]
    small = math.prod(padded) < SMALL
    lines = [
        "@T.prim_func(s_tir=True, private=True)",
        f'def pad(x_arg: T.Buffer({tuple(extents)}, "{dtype}"), '
        f'out_arg: T.Buffer({tuple(padded)}, "{dtype}")):',
        f'    x_flat = T.decl_buffer(({math.prod(extents)},), "{dtype}", data=x_arg.data)',
        f'    out_flat = T.decl_buffer(({math.prod(padded)},), "{dtype}", data=out_arg.data)',
        '    with T.sblock("root"):',
        "        T.reads()",
        "        T.writes()",
        f"        for r in {'range' if small else 'T.parallel'}({rows}):",
    ]
    positions = [
        minus(rest(divided("r", math.prod(padded[d + 1 : -1])), padded[d]), str(before[d]))
        for d in range(len(extents) - 1)
    ]
    first = "0"
    for position, extent in zip(positions, extents, strict=False):
        first = plus(times(first, extent), position)
    inside = [
        f"0 <= {p} and {p} < {e}"
        for p, e, b, a in zip(positions, extents, before, after, strict=False)
        if b or a
    ]
    start = times("r", row)
    number = f'T.{dtype}("{value}")' if not math.isfinite(value) else f"T.{dtype}({value})"
    copied = [
        *_filled(start, before[-1], number),
        f"for j in range({inner}):",
        f"    out_flat[{plus(plus(start, str(before[-1])), 'j')}] = "
        f"x_flat[{plus(times(first, inner), 'j')}]",
        *_filled(plus(start, str(before[-1] + inner)), after[-1], number),
    ]
    if not inside:
        lines += [f"{' ' * 12}{line}" for line in copied]
    else:
        lines += [f"{' ' * 12}if {' and '.join(inside)}:"]
        lines += [f"{' ' * 16}{line}" for line in copied]
        lines += [f"{' ' * 12}else:"]
        lines += [f"{' ' * 16}{line}" for line in _filled(start, row, number)]
    return "\n".join(lines) + "\n"


def _filled(start: str, count: int, number: str) -> Iterator[str]:
    if count:
        yield f"for j in range({count}):"
        yield f"    out_flat[{plus(start, 'j')}] = {number}"
