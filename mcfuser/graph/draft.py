"""A chain while it is being lifted: axes are numbers, reads name no indices yet.

`finish` merges the axes that need not be told apart, gives the rest the paper's letters by their
role in the products, and builds the chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from mcfuser.chain import Axis, Chain, Operator, Reducer, Tensor
from mcfuser.expr import Affine, Expr, Index, Read, axis, rewrite
from mcfuser.graph.views import AxisStrides, dense

_MORE = {"b": "acdefg", "m": "ijl", "n": "pqr", "k": "stu", "h": "vwxyz"}


@dataclass(frozen=True, slots=True)
class DraftInput:
    """A tensor that the chain reads, and how the axes lie in its value.

    `order` are its axes in the order in which a constant is laid out for the chain.
    """

    value: relax.Expr
    layout: AxisStrides
    offset: int
    order: tuple[int, ...]
    dtype: str
    array: NDArray[np.generic] | None = None


@dataclass(frozen=True, slots=True)
class DraftOperator:
    """An operator; `factors` are the two tensors that a product reads."""

    out: str
    axes: tuple[int, ...]
    body: Expr
    reduce: Reducer = "none"
    over: tuple[int, ...] = ()
    factors: tuple[str, str] | None = None


@dataclass
class Draft:
    """The operators so far, in order, and the extents of their axes."""

    sizes: dict[int, int] = field(default_factory=dict)
    sources: dict[str, DraftInput] = field(default_factory=dict)
    lines: list[DraftOperator] = field(default_factory=list)

    def fresh(self, wanted: Sequence[str]) -> str:
        """The first of these names that is free, or the last with a number."""
        taken = self.sources.keys() | {line.out for line in self.lines}
        numbered = (f"{wanted[-1]}{i}" for i in range(1, len(taken) + 2))
        return next(name for name in (*wanted, *numbered) if name not in taken)

    def axes(self, tensor: str) -> tuple[int, ...]:
        if tensor in self.sources:
            return tuple(self.sources[tensor].layout)
        return next(line.axes for line in self.lines if line.out == tensor)


@dataclass(frozen=True, slots=True)
class Finished:
    """The chain, and the draft with the axes that it has in the end."""

    chain: Chain
    constants: Mapping[str, NDArray[np.generic]]


def finish(draft: Draft, out: AxisStrides, dtype: str, name: str) -> Finished:
    """The chain whose last operator is the draft's last line.

    `out` says how its axes lie in the value that it is to be.
    """
    draft, out = _merged(draft, out)
    letters = _letters(draft)
    dims = {t: _dims(draft, t) for t in draft.sources}
    dims |= {line.out: line.axes for line in draft.lines}
    tensors = [_input(draft, t, dims[t], letters) for t in draft.sources]
    for line in draft.lines[:-1]:
        tensors.append(Tensor(line.out, tuple(letters[a] for a in line.axes)))
    last = draft.lines[-1]
    shape = tuple(letters[a] for a in last.axes)
    strides = tuple(out[a] for a in last.axes)
    plain = strides == dense([draft.sizes[a] for a in last.axes])
    tensors.append(Tensor(last.out, shape, dtype, strides=None if plain else strides))
    order = sorted(letters, key=lambda a: ("bmnkh".index(_roles(draft)[a]), a))
    chain = Chain(
        name,
        tuple(Axis(letters[a], draft.sizes[a]) for a in order),
        tuple(tensors),
        tuple(_operator(line, dims, letters) for line in draft.lines),
    )
    constants = {
        t: _laid_out(s, dims[t], draft.sizes)
        for t, s in draft.sources.items()
        if s.array is not None
    }
    return Finished(chain, constants)


def _operator(
    line: DraftOperator, dims: Mapping[str, tuple[int, ...]], letters: Mapping[int, str]
) -> Operator:
    def leaf(node: Read | Index) -> Expr:
        assert isinstance(node, Read)
        indices = tuple(axis(letters[a]) for a in dims[node.tensor])
        return Read(node.tensor, indices or (Affine((), 0),))

    return Operator(
        line.out,
        tuple(letters[a] for a in line.axes),
        rewrite(line.body, leaf),
        line.reduce,
        tuple(letters[a] for a in line.over),
    )


def _input(draft: Draft, name: str, dims: tuple[int, ...], letters: Mapping[int, str]) -> Tensor:
    source = draft.sources[name]
    shape: tuple[int | str, ...] = tuple(letters[a] for a in dims) or (1,)
    if source.array is not None:
        return Tensor(name, shape, source.dtype, constant=True)
    strides = tuple(source.layout[a] for a in dims) or (1,)
    extents = [draft.sizes[a] for a in dims] or [1]
    whole = math.prod(int(d) for d in source.value.ty.shape.values)
    if not source.offset and strides == dense(extents) and math.prod(extents) == whole:
        return Tensor(name, shape, source.dtype)
    return Tensor(name, shape, source.dtype, strides=strides, offset=source.offset)


def _laid_out(
    source: DraftInput, dims: tuple[int, ...], sizes: Mapping[int, int]
) -> NDArray[np.generic]:
    """The constant's array in the chain's own order, dense."""
    assert source.array is not None
    flat = np.ascontiguousarray(source.array).reshape(-1)[source.offset :]
    strides = tuple(source.layout[a] * flat.itemsize for a in dims)
    shape = tuple(sizes[a] for a in dims)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, shape, strides))


# --- merging --------------------------------------------------------------------------------


def _merged(draft: Draft, out: AxisStrides) -> tuple[Draft, AxisStrides]:
    while True:
        pairs = (
            pair for line in draft.lines for row in (line.axes, line.over) for pair in pairwise(row)
        )
        pair = next((p for p in pairs if _mergeable(draft, out, *p)), None)
        if pair is None:
            return draft, out
        draft, out = _merge(draft, out, *pair)


def _mergeable(draft: Draft, out: AxisStrides, one: int, two: int) -> bool:
    layouts = [(s.layout, s.array is not None) for s in draft.sources.values()]
    for layout, constant in [*layouts, (out, False)]:
        if (one in layout) != (two in layout):
            return False
        if one in layout and not constant and layout[one] != layout[two] * draft.sizes[two]:
            return False
    return all(_adjacent(line.axes, one, two) and _adjacent(line.over, one, two)
               for line in draft.lines)  # fmt: skip


def _adjacent(row: tuple[int, ...], one: int, two: int) -> bool:
    if one not in row and two not in row:
        return True
    return one in row and two in row and row.index(two) == row.index(one) + 1


def _merge(draft: Draft, out: AxisStrides, one: int, two: int) -> tuple[Draft, AxisStrides]:
    def kept(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a for a in row if a != two)

    def layout(old: AxisStrides) -> AxisStrides:
        return {a: old[two] if a == one else s for a, s in old.items() if a != two}

    sizes = {a: n * draft.sizes[two] if a == one else n for a, n in draft.sizes.items()}
    sources = {t: _fused(s, one, two, draft.sizes) for t, s in draft.sources.items()}
    lines = [replace(x, axes=kept(x.axes), over=kept(x.over)) for x in draft.lines]
    return Draft({a: n for a, n in sizes.items() if a != two}, sources, lines), layout(out)


def _fused(source: DraftInput, one: int, two: int, sizes: Mapping[int, int]) -> DraftInput:
    if one not in source.layout:
        return source
    array, layout = source.array, source.layout
    if array is not None and layout[one] != layout[two] * sizes[two]:
        dims = tuple(source.order)
        array = _laid_out(source, dims, sizes)
        layout = dict(zip(dims, dense(array.shape), strict=True))
        source = replace(source, array=array, offset=0)
    order = tuple(a for a in source.order if a != two)
    layout = {a: layout[two] if a == one else s for a, s in layout.items() if a != two}
    return replace(source, layout=layout, order=order)


# --- naming ---------------------------------------------------------------------------------


def _products(draft: Draft) -> Iterator[tuple[DraftOperator, set[int], set[int]]]:
    for line in draft.lines:
        if line.factors is not None:
            left, right = (set(draft.axes(t)) for t in line.factors)
            yield line, left, right


def _roles(draft: Draft) -> dict[int, str]:
    """For each axis b, m, n, k or h: the part it plays in the products (the paper's letters)."""
    (first, left, right), *more = _products(draft)
    seen = dict.fromkeys(a for line in draft.lines for a in (*line.axes, *line.over))
    roles = {}
    for a in seen:
        shared = a in left and a in right and all(a in x and a in y for _, x, y in more)
        if a in first.over:
            roles[a] = "k"
        elif any(a in line.over for line, _, _ in more):
            roles[a] = "n"
        elif a not in first.axes:
            roles[a] = "h"
        elif shared:
            roles[a] = "b"
        else:
            roles[a] = "m" if more or a in left else "n"
    return roles


def _letters(draft: Draft) -> dict[int, str]:
    roles, taken = _roles(draft), dict.fromkeys("bmnkh", 0)
    letters = {}
    for a, role in sorted(roles.items()):
        pool = role + _MORE[role]
        count = taken[role]
        letters[a] = pool[count] if count < len(pool) else f"{role}{count}"
        taken[role] += 1
    return letters


def _dims(draft: Draft, tensor: str) -> tuple[int, ...]:
    """The order of an input's dimensions: what is shared, then as they lie in memory."""
    source = draft.sources[tensor]
    pair = next((p for p in _products(draft) if tensor in (p[0].factors or ())), None)
    if source.array is not None or pair is None:
        return tuple(a for a in source.order if a in source.layout)
    line, left, right = pair
    shared = left & right & set(line.axes)
    return tuple(sorted(source.layout, key=lambda a: (a not in shared, -source.layout[a], a)))
