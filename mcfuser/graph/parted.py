"""Rewrites the values of a region that read a concatenation so that they read its parts.

A product with a concatenated operand has one result for each part, side by side, or is the sum of
one product for each. What is elementwise is done part by part. A softmax over all parts is made of
one over each: its exponentials are taken from the part's own maximum, and what is summed of them
is brought to the highest of these maxima in the end, as the parts of a split loop are. So the keys
and values of a decoding step are read where they are, in a cache and beside it, and the one new
position costs no more than a few numbers after the loop over the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TypeAlias

from tvm import relax

from mcfuser.graph.dataflow import (
    BIJECTIVE,
    Dataflow,
    array,
    dtype,
    extents,
    part_of,
    shape,
    sources,
)
from mcfuser.graph.matching import with_arguments
from mcfuser.graph.views import permutation

_READ = ("relax.broadcast_to", "relax.strided_slice")
"""Views that are no operators: they are followed where they are read."""


@dataclass(frozen=True)
class PartedRegion:
    """A region rewritten: its values in an order in which they can be computed, the last one its
    result, and the graph that has them beside those of the function.

    `made` are the values that the function does not have. `stored` are those that several operators
    read, with names for them.
    """

    flow: Dataflow
    members: tuple[relax.Var, ...]
    made: frozenset[relax.Var]
    stored: Mapping[relax.Var, str]


@dataclass(frozen=True)
class Parted:
    """A value in parts along the dimension `at`, counted from the last one, which is -1.

    Of a softmax, what the parts have in common is to be applied to what is computed of them: part i
    stands for `values[i] * weights[i] / total`. A part of one position is 1 then, and has no value.
    Where it is `guarded`, rows without any position are zeros. The total of any other row is at
    least 1, for its highest position has a share of 1.
    """

    values: tuple[relax.Expr | None, ...]
    at: int
    weights: tuple[relax.Expr, ...] = ()
    total: relax.Expr | None = None
    guarded: bool = False


@dataclass(frozen=True)
class IsNaN:
    """The condition that what is computed of a softmax in parts is no number."""

    of: Parted


class _Whole(Exception):
    """A value needs the concatenation as a whole."""


def in_parts(
    flow: Dataflow,
    members: Sequence[relax.Var],
    order: Sequence[relax.Var],
    extents_of_parts: tuple[int, ...],
) -> PartedRegion | None:
    """The region of `members` in which what is concatenated of parts with these extents is in parts
    throughout; None where something needs all parts at once, or the result is in parts.

    `order` has the members, the concatenations, and the views that lead from these to members.
    """
    for columns in (False, True):
        rewriting = _Rewriting(flow, {*members}, extents_of_parts, columns)
        try:
            for v in order:
                rewriting.add(v)
        except _Whole:
            continue
        if (region := rewriting.region(members)) is not None:
            return region
    return None


def lengths(concatenation: relax.Call) -> tuple[int, ...]:
    """The extents of the parts of a concatenation along its axis."""
    axis = int(concatenation.attrs.axis)
    return tuple(shape(part)[axis] for part in concatenation.args[0].fields)


Value: TypeAlias = relax.Expr | Parted | IsNaN


@dataclass
class _Rewriting:
    """The values that were rewritten so far, of a region and those that lead to it.

    `lengths` are those of the parts; `columns` says whether products of as many columns are in
    parts, too. `written` has, by each value that is computed otherwise, what stands in its place;
    `kept` are the others. `made` are new values with their expressions, `stages` the order in which
    groups of them are computed: the longest part first, so that all else follows its loop.
    `stored` is PartedRegion's.
    """

    flow: Dataflow
    members: AbstractSet[relax.Var]
    lengths: tuple[int, ...]
    columns: bool
    written: dict[relax.Var, Value] = field(default_factory=dict)
    kept: list[relax.Var] = field(default_factory=list)
    made: dict[relax.Var, relax.Expr] = field(default_factory=dict)
    stages: dict[relax.Var, int] = field(default_factory=dict)
    stored: dict[relax.Var, str] = field(default_factory=dict)
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)

    def add(self, v: relax.Var) -> None:
        """Rewrites a value. Raises _Whole where it needs all parts at once."""
        value = self.flow.values[v]
        if self.flow.kinds[v] == "concatenation" and lengths(value) == self.lengths:
            rank = len(shape(v))
            self.written[v] = Parted(
                tuple(value.args[0].fields), int(value.attrs.axis) % rank - rank
            )
            return
        args = [self.written.get(a, a) if isinstance(a, relax.Var) else a for a in value.args]
        made = self._product(v, args)
        if made is None:
            made = _where_no_number(value, args)
        if made is not None:
            self.written[v] = made
        elif any(isinstance(a, Parted) for a in args):
            self.written[v] = self._of_parts(v, value, args)
        elif not any(read in self.written for read in sources(value)):
            self.kept.append(v)
        elif any(isinstance(a, (IsNaN, relax.Tuple)) for a in args):
            raise _Whole
        else:
            self.written[v] = self._emit(with_arguments(value, args))

    def region(self, members: Sequence[relax.Var]) -> PartedRegion | None:
        """All that was rewritten; None where the result is in parts."""
        last = self.written.get(members[-1])
        if not isinstance(last, relax.Var):
            return None
        inside = [v for v in self.kept if v in self.members]
        made = sorted(
            (v for v, e in self.made.items() if v is not last and e.op.name not in _READ),
            key=self.stages.__getitem__,
        )
        flow = self.flow
        readers = {v: [*them] for v, them in flow.readers.items()}
        for v, value in self.made.items():
            for read in sources(value):
                readers.setdefault(read, []).append(v)
        graph = replace(
            flow,
            order=(*flow.order, *self.made),
            values={**flow.values, **self.made},
            readers={v: tuple(them) for v, them in readers.items()},
        )
        return PartedRegion(graph, (*inside, *made, last), frozenset(self.made), self.stored)

    # --- new values

    def _emit(self, value: relax.Expr, stage: int | None = None, stored: str = "") -> relax.Var:
        """A new value, of a stage of its own or of the latest that it reads. It is made an operator
        of the chain where it has a name for that."""
        value = self.builder.normalize(value)
        v = relax.Var(f"part{len(self.made)}", value.ty)
        self.made[v] = value
        known = (self.stages.get(read, 0) for read in sources(value))
        self.stages[v] = max(known, default=0) if stage is None else stage
        if stored:
            self.stored[v] = stored
        return v

    def _stage(self, part: int) -> int:
        """The longest part comes first."""
        return 0 if self.lengths[part] == max(self.lengths) else 1 + part

    @property
    def _last(self) -> int:
        return len(self.lengths) + 1

    def _cut(self, a: relax.Expr, at: int) -> tuple[relax.Expr, ...]:
        """An operand that is not in parts, in parts along a dimension; the same for each where it
        does not vary."""
        if extents(a) is None or -at > len(shape(a)) or shape(a)[at] == 1:
            return (a,) * len(self.lengths)
        if shape(a)[at] != sum(self.lengths) or a in self.made or a in self.members:
            raise _Whole
        axis, begin, found = at + len(shape(a)), 0, list[relax.Expr]()
        for part, length in enumerate(self.lengths):
            if array(a) is not None:
                found.append(part_of(a, axis, begin, begin + length))
            else:
                sliced = relax.op.strided_slice(a, [axis], [begin], [begin + length])
                found.append(self._emit(sliced, self._stage(part)))
            begin += length
        return tuple(found)

    # --- operators

    def _of_parts(self, v: relax.Var, value: relax.Call, args: Sequence[Value]) -> Parted:
        first = next(a for a in args if isinstance(a, Parted))
        kind = self.flow.kinds[v]
        if kind == "view" or value.op.name == "relax.broadcast_to":
            return self._view(v, value, first)
        if kind == "softmax" and not first.weights:
            return self._softmax(value, first)
        if kind != "elementwise" or (first.weights and value.op.name != "relax.astype"):
            raise _Whole
        others = [a for a in args if isinstance(a, Parted) and a is not first]
        if any(a.at != first.at or a.weights for a in others):
            raise _Whole
        every = [a.values if isinstance(a, Parted) else self._cut(a, first.at) for a in args]
        values = tuple(
            None if any(e is None for e in operands) else self._emit(
                with_arguments(value, operands), self._stage(part)
            )
            for part, operands in enumerate(zip(*every, strict=True))
        )  # fmt: skip
        return replace(first, values=values)

    def _view(self, v: relax.Var, value: relax.Call, x: Parted) -> Parted:
        before, after = shape(value.args[0]), shape(v)
        at = _followed(value, x.at + len(before), before, after) - len(after)

        def seen(e: relax.Expr, length: int, stage: int) -> relax.Expr:
            wanted = [*after]
            wanted[at] = length
            if value.op.name == "relax.permute_dims":
                made = relax.op.permute_dims(e, list(permutation(value)))
            elif value.op.name == "relax.broadcast_to":
                made = relax.op.broadcast_to(e, wanted)
            else:
                made = relax.op.reshape(e, wanted)
            return self._emit(made, stage)

        values = tuple(
            None if e is None else seen(e, self.lengths[part], self._stage(part))
            for part, e in enumerate(x.values)
        )
        weights = tuple(seen(e, 1, self._last) for e in x.weights)
        total = None if x.total is None else seen(x.total, 1, self._last)
        return Parted(values, at, weights, total, x.guarded)

    def _softmax(self, value: relax.Call, x: Parted) -> Parted:
        """The exponentials of each part from its own maximum, and what brings the parts together:
        their weights, and the sum of all."""
        scores = [e for e in x.values if e is not None]
        rank = len(shape(value.args[0]))
        if value.op.name != "relax.nn.softmax" or int(value.attrs.axis) % rank - rank != x.at:
            raise _Whole
        axis = [x.at + rank]
        highest, shares = list[relax.Expr](), list[relax.Expr | None]()
        sums = list[relax.Expr | None]()
        for part, e in enumerate(scores):
            stage = self._stage(part)
            e = self._emit(relax.op.astype(e, dtype(e)), stage, "X")
            if self.lengths[part] == 1:
                highest.append(e)
                shares.append(None)
                sums.append(None)
                continue
            highest.append(self._emit(relax.op.max(e, axis, True), stage))
            shift = self._emit(relax.op.subtract(e, highest[-1]), stage)
            shares.append(self._emit(relax.op.exp(shift), stage, "P"))
            sums.append(self._emit(relax.op.sum(shares[-1], axis, True), stage))
        top = reduce(lambda a, b: self._emit(relax.op.maximum(a, b), self._last), highest)
        weights = tuple(
            self._emit(relax.op.exp(self._emit(relax.op.subtract(h, top), self._last)), None, "W")
            for h in highest
        )
        total = self._added([
            w if z is None else self._emit(relax.op.multiply(z, w))
            for z, w in zip(sums, weights, strict=True)
        ])  # fmt: skip
        return Parted(tuple(shares), x.at, weights, total)

    def _product(self, v: relax.Var, args: Sequence[Value]) -> Value | None:
        """A matrix product of parts; None where neither operand is in parts."""
        value = self.flow.values[v]
        if self.flow.kinds[v] != "product":
            return None
        left, right = args
        if not isinstance(left, Parted) and not isinstance(right, Parted):
            if not self.columns or shape(v)[-1] != sum(self.lengths):
                return None
            right = Parted(self._cut(right, -1), -1)  # its columns are what is in parts later
        if value.op.name != "relax.matmul" or min(len(shape(a)) for a in value.args) < 2:
            raise _Whole
        if isinstance(right, Parted) and right.at == -1 and not isinstance(left, Parted):
            return Parted(tuple(
                self._emit(relax.op.matmul(left, e, out_dtype=dtype(v)), self._stage(part))
                for part, e in enumerate(right.values)
            ), -1)  # fmt: skip
        left = left if isinstance(left, Parted) else Parted(self._cut(left, -1), -1)
        right = right if isinstance(right, Parted) else Parted(self._cut(right, -2), -2)
        if (left.at, right.at) != (-1, -2) or right.weights:
            raise _Whole
        return self._summed(v, left, right)

    def _summed(self, v: relax.Var, left: Parted, right: Parted) -> relax.Expr:
        """The products of the parts, added with their weights."""
        wide = dtype(left.weights[0]) if left.weights else dtype(v)
        terms = list[relax.Expr]()
        for part, (a, b) in enumerate(zip(left.values, right.values, strict=True)):
            stage = self._stage(part)
            if self.lengths[part] > 1:
                term = self._emit(relax.op.matmul(a, b, out_dtype=dtype(v)), stage)
            elif a is None:
                term = b
            else:
                term = self._emit(relax.op.multiply(a, b), stage)
            if dtype(term) != wide:
                term = self._emit(relax.op.astype(term, wide), stage)
            if left.weights:
                term = self._emit(relax.op.multiply(term, left.weights[part]), self._last)
            terms.append(term)
        result = self._added(terms)
        if left.total is not None:
            result = self._emit(relax.op.divide(result, left.total))
        if left.guarded:
            some = self._emit(relax.op.greater(left.total, relax.const(0.5, wide)))
            result = self._emit(relax.op.where(some, result, relax.const(0.0, wide)))
        return result if dtype(v) == wide else self._emit(relax.op.astype(result, dtype(v)))

    def _added(self, terms: Sequence[relax.Expr]) -> relax.Expr:
        return reduce(lambda a, b: self._emit(relax.op.add(a, b), self._last), terms)


def _where_no_number(value: relax.Call, args: Sequence[Value]) -> Value | None:
    """The condition that a softmax in parts is no number, and the choice of 0 where it holds; None
    for any other operator."""
    if value.op.name == "relax.isnan" and isinstance(args[0], Parted) and args[0].weights:
        return IsNaN(args[0])
    if value.op.name != "relax.where" or not isinstance(condition := args[0], IsNaN):
        return None
    x, constant = args[2], array(value.args[1])
    if x is not condition.of or constant is None or constant.any():
        return None
    return replace(x, guarded=True)


def _followed(value: relax.Call, d: int, before: Sequence[int], after: Sequence[int]) -> int:
    """The dimension of a view that is dimension `d` of its argument. Raises _Whole where that is
    cut or joined with others."""
    if value.op.name == "relax.permute_dims":
        return permutation(value).index(d)
    if value.op.name == "relax.broadcast_to":
        return d + len(after) - len(before)
    if value.op.name not in BIJECTIVE:
        raise _Whole
    outside = math.prod(before[:d])
    found = (i for i, n in enumerate(after) if n == before[d] and math.prod(after[:i]) == outside)
    if (at := next(found, None)) is None:
        raise _Whole
    return at
