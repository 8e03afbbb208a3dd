"""Functions that replace elements of a tensor where it lies, as TVMScript."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from mcfuser.graph.dataflow import dtype, shape
from mcfuser.graph.views import permutation

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replacing:
    """How elements of a tensor are replaced: one for each of the positions `over`, where `guards`
    hold, at `at`, by `new`, an element of the last operand. `at` is in the coordinates of what
    views make of the tensor."""

    over: Shape
    guards: tuple[str, ...]
    at: tuple[str, ...]
    new: str


def replacing(
    call: relax.Call, position: int, cache: relax.Var, views: Sequence[relax.Call]
) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    """The function that does what a call of where, scatter_nd or scatter_elements does, in the
    memory of `cache`, and its operands besides.

    The call updates its operand at `position`; `views` lead to that from the cache.
    Elements outside of the tensor are lost.
    """
    name = call.op.name.removeprefix("relax.")
    others = [a for i, a in enumerate(call.args) if i != position]
    made = {"where": _where, "scatter_nd": _nd, "scatter_elements": _elements}[name](call, position)
    at = made.at
    for view in reversed(views):
        at = _before(view, at)
    buffers = [f"cache: {_buffer(cache)}", *(f"p{i}: {_buffer(x)}" for i, x in enumerate(others))]
    extents, axes = ", ".join(f"T.int64({n})" for n in made.over), range(len(made.over))
    every, kinds = [f"{name}{i}" for name in "vi" for i in axes], "S" * len(made.over)
    tests = [f"if {guard}:" for guard in made.guards]
    lines = [
        "@T.prim_func(s_tir=True, private=True)",
        f"def replace({', '.join(buffers)}):",
        '    T.func_attr({"tirx.noalias": True, "op_pattern": 8})',
        f"    for {', '.join(every[len(axes) :])} in T.grid({extents}):",
        '        with T.sblock("replace"):',
        f"            {', '.join(every[: len(axes)])} = T.axis.remap({kinds!r}, "
        f"[{', '.join(every[len(axes) :])}])",
        *(f"{' ' * (12 + 4 * i)}{test}" for i, test in enumerate(tests)),
        f"{' ' * (12 + 4 * len(tests))}cache[{', '.join(at)}] = {made.new}",
    ]
    return tvm.script.from_source("\n".join(lines)), others


def _buffer(x: relax.Expr) -> str:
    return f"T.Buffer({shape(x)!r}, {dtype(x)!r})"


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"v{i}" for i in range(count))


# --- the operators ------------------------------------------------------------------------------


def _where(call: relax.Call, position: int) -> Replacing:
    whole = shape(call)
    at = _names(len(whole))
    condition = f"p0[{_broadcast(shape(call.args[0]), at)}]"
    guard = f"T.Not({condition})" if position == 1 else condition
    return Replacing(whole, (guard,), at, f"p1[{_broadcast(shape(call.args[3 - position]), at)}]")


def _broadcast(extents: Shape, at: Sequence[str]) -> str:
    """The index of an operand that is repeated along its dimensions of extent 1."""
    last = at[len(at) - len(extents) :]
    return ", ".join("0" if n == 1 else a for n, a in zip(extents, last, strict=True)) or "()"


def _nd(call: relax.Call, position: int) -> Replacing:
    """Its indices are counted from the start, as the importer writes them."""
    data, indices = shape(call.args[position]), shape(call.args[1])
    *outer, depth = indices
    over = (*outer, *data[depth:])
    names = _names(len(over))
    chosen = [", ".join([*names[: len(outer)], str(k)]) for k in range(depth)]
    at = [f'T.Cast("int64", p0[{where}])' for where in chosen]
    guards = tuple(g for a, n in zip(at, data, strict=False) for g in _inside(a, n))
    return Replacing(over, guards, (*at, *names[len(outer) :]), f"p1[{', '.join(names)}]")


def _elements(call: relax.Call, position: int) -> Replacing:
    """Its indices are counted from the end where they are negative."""
    data, over = shape(call.args[position]), shape(call.args[1])
    names = _names(len(over))
    axis = int(call.attrs.axis) % len(data)
    index = _from_end(f"p0[{', '.join(names)}]", data[axis])
    at = tuple(index if i == axis else name for i, name in enumerate(names))
    return Replacing(over, tuple(_inside(index, data[axis])), at, f"p1[{', '.join(names)}]")


def _from_end(index: str, extent: int) -> str:
    index = f'T.Cast("int64", {index})'
    return f"T.Select({index} < T.int64(0), {index} + T.int64({extent}), {index})"


def _inside(index: str, extent: int) -> tuple[str, str]:
    return f"T.int64(0) <= {index}", f"{index} < T.int64({extent})"


# --- through views ------------------------------------------------------------------------------


def _before(view: relax.Call, at: Sequence[str]) -> tuple[str, ...]:
    """The coordinates in what is viewed of an element at `at` of the view."""
    source, seen = shape(view.args[0]), shape(view)
    if view.op.name == "relax.permute_dims":
        axes = permutation(view)
        return tuple(at[axes.index(i)] for i in range(len(axes)))
    wide = [(a, n) for a, n in zip(at, seen, strict=True) if n > 1]
    if [n for _, n in wide] == [n for n in source if n > 1]:
        left = iter(wide)
        return tuple(next(left)[0] if n > 1 else "0" for n in source)
    strides = [math.prod(seen[i + 1 :]) for i in range(len(seen))]
    place = " + ".join(f"({a}) * T.int64({s})" for a, s in zip(at, strides, strict=True))
    return tuple(
        f"({place}) // T.int64({math.prod(source[i + 1 :])}) % T.int64({n})"
        for i, n in enumerate(source)
    )
