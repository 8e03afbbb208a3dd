"""Concatenations of parts of some values, which together are these, as parts of one concatenation.

A layer that attends to two sequences at once makes queries, keys and values of each by one product,
and puts the queries of both behind each other, the keys, and the values. The products' results
behind each other have them all: one array, into which kernels can write (`mcfuser.graph.joined`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from mcfuser.graph.dataflow import extents, operator_name, shape
from mcfuser.graph.matching import calls, calls_rewritten
from mcfuser.graph.views import cut_along, permutation

_CONCAT = "relax.concat"
_Values = Mapping[relax.Var, relax.Expr]


@dataclass(frozen=True)
class _Slice:
    """The positions of a value from `begin` to `end` along `along`, then in the shape `seen`, then
    with the dimensions `order`."""

    value: relax.Var
    along: int
    begin: int
    end: int
    seen: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class _Joined:
    """A concatenation of the same slice of several values, along the dimension `axis` of these."""

    parts: tuple[_Slice, ...]
    axis: int

    @property
    def key(self) -> tuple[object, ...]:
        """What it has in common with concatenations of other slices of the same values."""
        return (*(p.value for p in self.parts), self.axis, self.parts[0].along)

    @property
    def positions(self) -> tuple[int, int]:
        """The first position along the sliced dimension, and the one behind the last."""
        return self.parts[0].begin, self.parts[0].end


def joined_whole(function: relax.Function) -> relax.Function:
    """The function with slices of one concatenation in the place of concatenations of slices that
    are all of some values together."""
    values = relax.analysis.get_var2val(function)
    alike: dict[tuple[object, ...], set[tuple[int, int]]] = {}
    for name, call in calls(function.body):
        if name == _CONCAT and (found := _joined(call, values)) is not None:
            alike.setdefault(found.key, set()).add(found.positions)

    def rewriter(call: relax.Call) -> relax.Expr:
        found = _joined(call, values)
        if found is None or not _all(found, alike.get(found.key, set())):
            return call
        one = found.parts[0]
        both = relax.op.concat([p.value for p in found.parts], found.axis)
        part = relax.op.strided_slice(both, [one.along], [one.begin], [one.end])
        whole = list(one.seen)
        whole[found.axis] = sum(p.seen[found.axis] for p in found.parts)
        seen = relax.op.reshape(part, whole)
        turned = one.order != tuple(range(len(whole)))
        return relax.op.permute_dims(seen, [*one.order]) if turned else seen

    return calls_rewritten(function, {_CONCAT}, rewriter) if alike else function


def _all(found: _Joined, ranges: set[tuple[int, int]]) -> bool:
    """Whether some ranges are all positions of the sliced dimension, each once."""
    reached = 0
    for begin, end in sorted(ranges):
        if begin != reached:
            return False
        reached = end
    part = found.parts[0]
    return len(ranges) > 1 and reached == shape(part.value)[part.along]


def _joined(call: relax.Call, values: _Values) -> _Joined | None:
    """What a concatenation joins, if it is the same slice of several values."""
    if not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return None
    parts = [_slice(part, values) for part in call.args[0].fields]
    one = parts[0]
    if one is None:
        return None
    axis = one.order[int(call.attrs.axis) % len(one.order)]
    alike = tuple(p for p in parts if p is not None and _same(p, one, axis))
    kept = one.seen[: axis + 1] == shape(one.value)[: axis + 1]
    fits = len(alike) == len(parts) > 1 and axis < one.along and kept
    return _Joined(alike, axis) if fits else None


def _slice(part: relax.Expr, values: _Values) -> _Slice | None:
    """What a part of a concatenation is a slice of; None if it is none."""
    value, order = _made(part, values), tuple[int, ...]()
    if operator_name(value) == "permute_dims":
        order, value = permutation(value), _made(value.args[0], values)
    seen = extents(value)
    if operator_name(value) == "reshape":
        value = _made(value.args[0], values)
    cut = cut_along(value)
    if cut is None or seen is None or not isinstance(value.args[0], relax.Var):
        return None
    return _Slice(value.args[0], *cut, seen, order or tuple(range(len(seen))))


def _made(e: relax.Expr, values: _Values) -> relax.Expr:
    """The call that a variable stands for."""
    return values.get(e, e) if isinstance(e, relax.Var) else e


def _same(part: _Slice, one: _Slice, axis: int) -> bool:
    """Whether two slices differ at most in their extents along an axis."""
    whole, other = shape(part.value), shape(one.value)
    return (
        (part.along, part.begin, part.end, part.order) == (one.along, one.begin, one.end, one.order)
        and part.seen[:axis] + part.seen[axis + 1 :] == one.seen[:axis] + one.seen[axis + 1 :]
        and whole[:axis] + whole[axis + 1 :] == other[:axis] + other[axis + 1 :]
        and part.seen[axis] == whole[axis]
    )
