"""Concatenations and slices in place: which values lie in the array of another one, and where.

Of one picture, the channels that are put behind each other are slices of one array, and so are
those that are cut out. What a kernel writes there, and other kernels read there, need not be
copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from mcfuser.chain import BYTES
from mcfuser.codegen.shapes import fixed

ALIGNED = 64
"""Bytes at whose multiples values begin in an array: kernels move whole vectors."""
SCHEDULED = "tirx.is_scheduled"
"""The attribute of functions that have schedules: before TVM has made its own, these are kernels.
"""
_CALL, _UPDATE, _CONCAT, _VIEW, _SLICE = (
    tvm.ir.Op.get(f"relax.{name}")
    for name in ("call_tir", "call_tir_inplace", "concat", "reshape", "strided_slice")
)


@dataclass(frozen=True)
class ArrayPlace:
    """Where a value lies: from the element `start` on in the array of the value `whole`."""

    whole: relax.Var
    start: int


@dataclass(frozen=True)
class ArrayPlaces:
    """The values that lie in concatenations. Those of `sliced` are copied out, too, since what
    reads them is no kernel. `copied` are parts that no kernel writes, and where they are copied."""

    lying: Mapping[relax.Var, ArrayPlace]
    sliced: frozenset[relax.Var]
    copied: tuple[tuple[relax.Expr, ArrayPlace], ...]

    def copy(self, flow: ValueFlow, part: JoinedPart, at: ArrayPlace) -> relax.Expr | None:
        """What is copied to the place of a part, which may be another view of the same elements;
        None where nothing is."""
        return next((v for v, p in self.copied if p == at and flow.origin(v) == part.origin), None)


@dataclass(frozen=True)
class JoinedPart:
    """A part of a concatenation, which begins at its element `start`, and where the part is."""

    value: relax.Expr
    origin: ArrayPlace
    start: int


@dataclass(frozen=True)
class ValueFlow:
    """The values of a function in their order, what reads each of them (None: the function returns
    it), and the kernels of its module."""

    values: Mapping[relax.Var, Any]
    readers: Mapping[relax.Var, Sequence[relax.Var | None]]
    kernels: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc]

    @cached_property
    def joined(self) -> dict[relax.Var, tuple[JoinedPart, ...]]:
        """The concatenations whose parts are slices of their arrays, each in one piece."""
        return {v: tuple(self._parts(made)) for v, made in self.values.items() if _contiguous(made)}

    def _parts(self, joined: relax.Call) -> Iterator[JoinedPart]:
        start = 0
        for part in joined.args[0].fields:
            yield JoinedPart(part, self.origin(part), start)
            start += math.prod(extents(part))

    def origin(self, value: Any) -> ArrayPlace:
        """The value that another one is a view or a slice of, and where in it; itself if it is
        neither."""
        start = 0
        while (source := _source(self.values.get(value))) is not None:
            value, start = source.whole, start + source.start
        return ArrayPlace(value, start)

    def cut(self, value: Any) -> bool:
        """Whether a value is a slice of another one, which stays as it is until it is read.

        What is updated in place does not, and inputs may be.
        """
        whole, sliced = self.origin(value).whole, False
        while (source := _source(made := self.values.get(value))) is not None:
            sliced |= _is(made, _SLICE)
            value = source.whole
        stays = whole in self.values and not _is(self.values[whole], _UPDATE)
        return (
            sliced
            and stays
            and known(whole)
            and not any(_is(self.values.get(r), _UPDATE) for r in self.readers_of(whole))
        )

    def readers_of(self, value: relax.Var) -> Iterator[relax.Var | None]:
        """What reads a value, or a view or slice of it."""
        for reader in self.readers.get(value, ()):
            if _source(self.values.get(reader)) is not None:
                yield from self.readers_of(reader)
            else:
                yield reader

    def launches(self, value: relax.Var | None) -> bool:
        """Whether a value is what a kernel's call gives."""
        made: Any = self.values.get(value)
        return _is(made, _CALL) and len(made.args) == 2 and made.args[0] in self.kernels

    def results(self, call: relax.Var) -> list[relax.Var | None]:
        """The values that a kernel writes, in its order; None for those that nothing reads."""
        if not isinstance(call.ty, relax.TupleType):
            return [call]
        named: list[relax.Var | None] = [None] * len(call.ty.fields)
        for reader in self.readers.get(call, ()):
            made = self.values.get(reader)
            if isinstance(made, relax.TupleGetItem):
                named[made.index] = reader
        return named

    def written(self, value: relax.Var) -> bool:
        """Whether a kernel writes a value."""
        made = self.values.get(value)
        call = made.tuple_value if isinstance(made, relax.TupleGetItem) else value
        return self.launches(call) and value in self.results(call)


def value_flow(
    function: relax.Function, kernels: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc]
) -> ValueFlow:
    """What flows where in a function."""
    values, readers = dict[relax.Var, Any](), dict[relax.Var, list[relax.Var | None]]()
    for block in function.body.blocks:
        for binding in block.bindings:
            plain = isinstance(binding, relax.VarBinding)
            values[binding.var] = binding.value if plain else None
            for v in relax.analysis.free_vars(binding.value):
                readers.setdefault(v, []).append(binding.var)
    for v in relax.analysis.free_vars(function.body.body):
        readers.setdefault(v, []).append(None)
    return ValueFlow(values, readers, kernels)


def kernels_of(module: tvm.IRModule) -> dict[tvm.ir.GlobalVar, tirx.PrimFunc]:
    """The kernels of a module whose other functions TVM has not scheduled yet."""
    return {
        name: function
        for name, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc)
        and SCHEDULED in (function.attrs or {})
        and isinstance(function.body, s_tir.SBlockRealize)
    }


def places(flow: ValueFlow) -> ArrayPlaces:
    """Where the values of a function may lie, so that less is copied. The largest concatenations
    come first: the smaller ones of a dense block are the first parts of its last one. What the
    function returns stays outside."""
    found = ArrayPlaces({}, frozenset(), ())
    for whole in sorted(flow.joined, key=lambda v: -math.prod(extents(v))):
        if whole not in found.lying and None not in flow.readers_of(whole):
            found = _with(found, flow, whole)
    return found


def _contiguous(made: Any) -> bool:
    """Whether a value is a concatenation whose parts are slices of its array, each in one piece."""
    if not _is(made, _CONCAT) or not isinstance(made.args[0], relax.Tuple):
        return False
    if made.attrs.axis is None or str(made.ty.dtype) not in BYTES:
        return False
    fixed = all(map(known, made.args[0].fields))
    return fixed and math.prod(extents(made)[: axis_of(made)]) == 1


def axis_of(joined: relax.Call) -> int:
    """The dimension along which the parts of a concatenation lie behind each other."""
    return int(joined.attrs.axis) % len(extents(joined))


def extents(value: relax.Expr) -> tuple[int, ...]:
    """The extents of a tensor, which are known."""
    return tuple(int(n) for n in value.ty.shape.values)


def known(value: relax.Expr) -> bool:
    """Whether a value is a tensor of one dimension or more whose extents are numbers."""
    return isinstance(value.ty, relax.TensorType) and fixed(value.ty.shape) is not None


def _source(made: Any) -> ArrayPlace | None:
    """What a value is a view or a slice of, or another name for, and where in it; None if it is
    none of these, or a slice that is not in one piece."""
    if isinstance(made, relax.Var):
        return ArrayPlace(made, 0)
    if _is(made, _VIEW):
        return ArrayPlace(made.args[0], 0)
    return _sliced(made) if _is(made, _SLICE) else None


def _sliced(made: relax.Call) -> ArrayPlace | None:
    """What a slice is cut out of, and where; None if it is not in one piece there, or does not
    begin where kernels move vectors."""
    along = sliced_along(made)
    if along is None or str(made.ty.dtype) not in BYTES:
        return None
    (axis, first), data = along, made.args[0]
    if math.prod(extents(data)[:axis]) != 1:
        return None
    place = ArrayPlace(data, first * math.prod(extents(data)[axis + 1 :]))
    return place if _aligned(made, place) else None


def sliced_along(made: relax.Call) -> tuple[int, int] | None:
    """The dimension along which a slice has fewer elements than what it is cut out of, and the
    first of them; None where there is not one such dimension, extents are not numbers, or elements
    between the first and the last are left out."""
    data, axes, begins, *_ = made.args
    if not (known(data) and known(made) and _whole_steps(made)):
        return None
    given, cut = extents(data), extents(made)
    changed = [d for d, (n, part) in enumerate(zip(given, cut, strict=True)) if part != n]
    if len(changed) != 1:
        return None
    (axis,) = changed
    first = int(begins.fields[[int(a) % len(given) for a in axes.fields].index(axis)])
    return axis, min(max(first + given[axis] * (first < 0), 0), given[axis])


def _whole_steps(made: relax.Call) -> bool:
    """Whether a slice leaves nothing out between its first and its last position."""
    return all(int(n) == 1 for steps in made.args[4:] for n in steps.fields)


def _is(made: Any, op: tvm.ir.Op) -> bool:
    return isinstance(made, relax.Call) and made.op == op


def _with(found: ArrayPlaces, flow: ValueFlow, whole: relax.Var) -> ArrayPlaces:
    """The places, with those in a concatenation's array; without them where as many copies would
    remain as there are."""
    layout = _Layout(flow, found.lying, {}, [])
    layout.place(whole, ArrayPlace(whole, 0))
    for other in flow.joined:
        layout.find(other)
    lying, copied = layout.lying, layout.copied
    sliced = {v for v in lying if not v.same_as(whole) and not layout.found_by_all(v)}
    less = len(copied) + len(sliced) < sum(v in lying for v in flow.joined)
    if not less or not all(_fits(part, flow.values[whole]) for part, _ in copied):
        return found
    return ArrayPlaces({**found.lying, **lying}, found.sliced | sliced, (*found.copied, *copied))


def _fits(part: relax.Expr, joined: relax.Call) -> bool:
    """Whether a tensor has a concatenation's dimensions, and the same extents behind its axis."""
    behind = axis_of(joined) + 1
    one, whole = extents(part), extents(joined)
    return len(one) == len(whole) and one[behind:] == whole[behind:]


@dataclass
class _Layout:
    """The values that lie in one concatenation, so far; `taken` lie in others."""

    flow: ValueFlow
    taken: Mapping[relax.Var, ArrayPlace]
    lying: dict[relax.Var, ArrayPlace]
    copied: list[tuple[relax.Expr, ArrayPlace]]

    def place(self, value: relax.Var, at: ArrayPlace) -> None:
        """Places a value; of a concatenation its parts, too."""
        self.lying[value] = at
        for part in self.flow.joined.get(value, ()):
            lies, base = ArrayPlace(at.whole, at.start + part.start), part.origin.whole
            first = ArrayPlace(at.whole, lies.start - part.origin.start)
            if base in self.lying and self.lying[base] == first:
                continue  # another slice of it has been seen
            free = base not in self.lying and base not in self.taken and _aligned(base, first)
            made_so = base in self.flow.joined or self.flow.written(base)
            if free and made_so and self.has_all(value, part.start, base):
                self.place(base, first)
            else:
                self.copied.append((part.value, lies))

    def has_all(self, joined: relax.Var, start: int, base: relax.Var) -> bool:
        """Whether a concatenation has all of a value from the element `start` on, whole or in
        slices behind each other."""
        size = math.prod(extents(base)) if known(base) else -1
        end = 0
        for part in self.flow.joined[joined]:
            if part.start < start or end == size:
                continue
            if part.origin != ArrayPlace(base, end):
                return False
            end += math.prod(extents(part.value))
        return end == size

    def find(self, joined: relax.Var) -> None:
        """Places a concatenation whose parts happen to lie behind each other."""
        if joined in self.lying or joined in self.taken:
            return
        begins = list[set[ArrayPlace]]()
        for part in self.flow.joined[joined]:
            lies = [at for copy, at in self.copied if self._same(copy, part)]
            if (at := within(self.lying, part.origin)) is not None:
                lies.append(at)
            begins.append({ArrayPlace(at.whole, at.start - part.start) for at in lies})
            if not lies:
                return
        for first in sorted(set.intersection(*begins), key=lambda at: at.start):
            if _aligned(joined, first):
                self.lying[joined] = first
                return

    def _same(self, copy: relax.Expr, part: JoinedPart) -> bool:
        """Whether what is copied has the elements of a part, and no others."""
        size = math.prod(extents(copy))
        return self.flow.origin(copy) == part.origin and size == math.prod(extents(part.value))

    def found_by_all(self, value: relax.Var) -> bool:
        """Whether all that reads a value finds it where it lies."""
        return all(
            self.flow.launches(reader) or self.joins(reader, value)
            for reader in self.flow.readers_of(value)
        )

    def joins(self, reader: relax.Var | None, value: relax.Var) -> bool:
        """Whether a reader is a concatenation in which a value lies as one of its parts."""
        if reader not in self.lying or reader not in self.flow.joined:
            return False
        first = self.lying[value].start - self.lying[reader].start
        parts = (p for p in self.flow.joined[reader] if p.origin.whole == value)
        return all(p.start == first + p.origin.start for p in parts)


def within(lying: Mapping[relax.Var, ArrayPlace], origin: ArrayPlace) -> ArrayPlace | None:
    """Where a slice of a value lies, if that lies in an array."""
    at = lying.get(origin.whole)
    return None if at is None else ArrayPlace(at.whole, at.start + origin.start)


def _aligned(value: relax.Expr, at: ArrayPlace) -> bool:
    return at.start * BYTES[str(value.ty.dtype)] % ALIGNED == 0
