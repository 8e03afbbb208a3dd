"""A function's parameters: arrays, whose shapes show most run-time extents, and the others.

In the body every array is one-dimensional, whatever its shape: `A_flat`. A run-time extent is
`n_extent` in shapes, and `n_size` in the body, where TVM knows its bounds: without them its
analysis of 32-bit indices overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from mcfuser.chain import BYTES, NO_STARTS, Bounds, Chain, flat_size
from mcfuser.codegen.tensorir.integer import minus, shape, times
from mcfuser.codegen.tensorir.source import Panels

Shapes = Mapping[str, tuple[int | str, ...]]
"""The extents that parameters have in the surrounding graph, run-time ones by their axis."""

ROOT = 'with T.sblock("root"):'
"""The line with which a function's statements begin."""


@dataclass(frozen=True)
class Parameters:
    """The signature, the lines that bind what it shows, and axes with arguments of their own."""

    signature: str
    lines: tuple[str, ...]
    scalars: tuple[str, ...]


def parameters(
    chain: Chain,
    packed: Mapping[str, Panels],
    shapes: Shapes,
    starts: Mapping[str, int] = NO_STARTS,
) -> Parameters:
    """The parameters of a chain's kernel: inputs, `scalars`, outputs, as call_tir hands them over.

    Where `shapes` does not say otherwise, an array is flat, but one with run-time extents has those
    of its tensor if it is dense. In the body an array begins at the element of the parameter that
    `starts` says.
    """
    bounds = {a.name: a.extent for a in chain.axes if isinstance(a.extent, Bounds)}
    dims = {n: _dims(chain, n, packed, shapes) for n in (*chain.inputs, *chain.outputs)}
    shown = {d for extents in dims.values() for d in extents if not d.isdigit()}
    scalars = tuple(a for a in bounds if f"{a}_extent" not in shown)
    signature, lines = [], [f"{v} = T.int32()" for v in sorted(shown)]
    for n, extents in dims.items():
        if n == chain.outputs[0]:
            signature += [f"{a}_extent: T.int32" for a in scalars]
        array = f'{shape(extents)}, "{chain.tensor(n).dtype}"'
        if shown.isdisjoint(extents):
            signature.append(f"{n}_arg: T.Buffer({array})")
        else:
            signature.append(f"{n}_arg: T.handle")
            lines.append(f"{n}_in = T.match_buffer({n}_arg, {array})")
    for a, extent in bounds.items():
        lines += _checked(a, extent)
    for n, extents in dims.items():
        whole = "arg" if shown.isdisjoint(extents) else "in"
        size, data = reduce(times, extents or ("1",)), f"{n}_{whole}.data"
        if first := starts.get(n):
            size = minus(size, str(first))
            data = f"T.handle_add_byte_offset({data}, {first * BYTES[chain.tensor(n).dtype]})"
        flat = f'({size},), "{chain.tensor(n).dtype}"'
        lines.append(f"{n}_flat = T.decl_buffer({flat}, data={data})")
    return Parameters(", ".join(signature), tuple(lines), scalars)


def header(name: str, given: Parameters) -> tuple[str, ...]:
    """The function's first lines, before its statements."""
    attributes = '{"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}'
    lines = (f"T.func_attr({attributes})", *given.lines)
    return (f"def {name}({given.signature}):", *(f"    {line}" for line in lines))


def shaped(chain: Chain) -> list[str]:
    """The parameters whose arrays have their tensor's shape, which shows a run-time extent: by
    themselves arrays are flat."""
    names = (*chain.inputs, *chain.outputs)
    return [n for n in names if len(_dims(chain, n, {}, {})) == len(chain.tensor(n).shape) != 1]


def _dims(chain: Chain, name: str, packed: Mapping[str, Panels], shapes: Shapes) -> tuple[str, ...]:
    """The text of each extent of a parameter: a number or a variable."""
    tensor = chain.tensor(name)
    if name in packed:
        return (str(packed[name].size(chain.shape(name))),)
    dims = shapes.get(name, tensor.shape)
    if not any(isinstance(d, str) and isinstance(chain.extent(d), Bounds) for d in dims):
        return tuple(str(d) for d in shapes.get(name, (flat_size(chain, name),)))
    if name not in shapes and (tensor.strides is not None or tensor.offset):
        return (f"{name}_elements",)
    return tuple(_extent(chain, d) for d in dims)


def _extent(chain: Chain, d: int | str) -> str:
    if isinstance(d, int):
        return str(d)
    return f"{d}_extent" if isinstance(chain.extent(d), Bounds) else str(chain.size(d))


def _checked(a: str, extent: Bounds) -> tuple[str, str]:
    low, high = extent.low, extent.high
    wrong = f"axis '{a}' needs an extent from {low} to {high}"
    return (
        f'assert T.And({a}_extent >= {low}, {a}_extent <= {high}), "{wrong}"',
        f"{a}_size: T.let[T.int32] = T.min(T.max({a}_extent, {low}), {high})",
    )
