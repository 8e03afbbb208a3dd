"""Concatenations whose parts are written where they lie, so that nothing is copied.

The result of a chain that only a concatenation reads has the strides of its elements in the
concatenation's array, and its kernel is given that array. Where parts lie in one piece each, a
backend that gives kernels other addresses needs no strides (`mcfuser.codegen.cuda.places`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tvm import relax

from mcfuser.chain import BYTES, Chain, Digit, Stride, Tensor, digits, strides_of
from mcfuser.graph.dataflow import Dataflow, dtype, extents, shape
from mcfuser.graph.selection import ChainMatch, JoinedResult

_ALIGNED = 16
"""Bytes at whose multiples parts begin, and rows of them: kernels move vectors."""
_MOST = 1 << 31
"""Elements of an array, whose offsets 32 bits hold."""
_SAME_ORDER = ("reshape", "expand_dims", "squeeze")
"""Views that leave every element at its place."""


def joined(flow: Dataflow, matches: Sequence[ChainMatch]) -> tuple[ChainMatch, ...]:
    """The chains, those among them writing into concatenations that compute all parts of these."""
    inside = {v for m in matches for v in m.bindings}
    read = {v for m in matches for e in m.arguments.values() for v in relax.analysis.free_vars(e)}
    writers = {v: m for m in matches for v in _only_result(m)}
    written = dict[relax.Var, ChainMatch]()
    for v in flow.order:
        if flow.kinds[v] != "concatenation" or v in inside or v in flow.outputs:
            continue
        parts = _parts(flow, v, writers, read)
        placed = {
            result: match
            for result, part in parts.items()
            if (match := _placed(writers[result], part)) is not None
        }
        written |= placed if len(placed) == len(parts) else {}
    return tuple(next((written[v] for v in _only_result(m) if v in written), m) for m in matches)


def _only_result(match: ChainMatch) -> tuple[relax.Var, ...]:
    """The result of a chain that has one, if it is stored as it is."""
    stored = match.channels_last.isdisjoint(match.outputs)
    return tuple(match.outputs.values()) if stored and len(match.outputs) == 1 else ()


def _parts(
    flow: Dataflow,
    v: relax.Var,
    writers: Mapping[relax.Var, ChainMatch],
    read: AbstractSet[relax.Var],
) -> dict[relax.Var, JoinedResult]:
    """The parts of a concatenation by the chains' results that they are; none where one of them is
    no such result, has other readers, has one row alone, or does not begin where vectors do."""
    whole, value = extents(v), flow.values[v]
    if whole is None or math.prod(whole) >= _MOST or not isinstance(value.args[0], relax.Tuple):
        return {}
    if value.attrs.axis is None or dtype(v) not in BYTES:
        return {}
    axis = int(value.attrs.axis) % len(whole)
    if math.prod(whole[:axis]) == 1:
        return {}
    found, begin = dict[relax.Var, JoinedResult](), 0
    for part in value.args[0].fields:
        traced = _traced(flow, v, part, writers, read)
        if traced is None or traced[0] in found:
            return {}
        end = begin + shape(part)[axis]
        result, views = traced
        found[result] = JoinedResult(v, views, axis, begin, end, writers[result].chain.key)
        begin = end
    vectors = _ALIGNED // math.gcd(_ALIGNED, BYTES[dtype(v)])
    numbers = (n for p in found.values() for n in (p.row, p.start, p.stride))
    return found if all(n % vectors == 0 for n in numbers) else {}


def _traced(
    flow: Dataflow,
    v: relax.Var,
    part: relax.Expr,
    writers: Container[relax.Var],
    read: AbstractSet[relax.Var],
) -> tuple[relax.Var, tuple[relax.Var, ...]] | None:
    """The result of a chain that a part of a concatenation `v` is, and the views between, where
    nothing else reads any of them; None where there is none."""
    views, reader = list[relax.Var](), v
    while isinstance(part, relax.Var) and flow.readers.get(part) == (reader,):
        if part in read or part in flow.outputs:
            return None
        if part in writers:
            return part, tuple(views)
        if flow.operator(part) not in _SAME_ORDER:
            return None
        views.append(part)
        reader, part = part, flow.values[part].args[0]
    return None


def _placed(match: ChainMatch, part: JoinedResult) -> ChainMatch | None:
    """The chain that writes its result as a part; None where one of its axes goes from a row of the
    part into the next one."""
    (name,) = match.outputs
    tensor = _within(match.chain, name, part)
    if tensor is None:
        return None
    tensors = tuple(tensor if t.name == name else t for t in match.chain.tensors)
    chain = replace(match.chain, tensors=tensors)
    shapes = {**match.shapes, name: shape(part.whole)}
    return replace(match, chain=chain, shapes=shapes, joined=part)


def _within(chain: Chain, name: str, part: JoinedResult) -> Tensor | None:
    """A chain's result as it lies in the array of a concatenation."""
    tensor, inside, strides = chain.tensor(name), 0, list[Stride]()
    if tensor.offset or tensor.padding:
        return None
    for stride, extent in zip(strides_of(chain, name), chain.shape(name), strict=True):
        moved = list[Digit]()
        for d in (p for whole in digits(stride, extent) for p in _parted(whole, part.row)):
            if d.stride % part.row == 0:
                moved.append(Digit(d.extent, d.stride // part.row * part.stride))
            else:
                moved.append(d)
                inside += (d.extent - 1) * d.stride
        strides.append(moved[0].stride if len(moved) == 1 else tuple(moved))
    if inside >= part.row:
        return None
    return replace(tensor, strides=tuple(strides), offset=part.start)


def _parted(d: Digit, row: int) -> tuple[Digit, ...]:
    """A digit as two where it goes over whole rows, and from place to place in them."""
    inside = row // d.stride if d.stride and row % d.stride == 0 else 1
    if 1 < inside < d.extent and d.extent % inside == 0:
        return Digit(d.extent // inside, row), Digit(inside, d.stride)
    return (d,)
