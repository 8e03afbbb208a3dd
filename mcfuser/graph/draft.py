"""A chain while it is being lifted: its axes are numbers, and its reads have no indices yet.

`finish` merges neighbouring axes wherever one axis would do, names the axes after the paper's
letters by their roles in the products, and builds the chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from mcfuser.chain import (
    Axis,
    Chain,
    Digit,
    Operator,
    Padding,
    Reducer,
    Stride,
    Tensor,
    dense,
)
from mcfuser.expr import Affine, Expr, Index, Read, axis, reads, rewrite, walk
from mcfuser.graph.views import AxisStrides, LaidOutPadding

_MORE = {"b": "acdefg", "m": "ijl", "n": "pqr", "k": "stu", "h": "vwxyz"}


@dataclass(frozen=True, slots=True)
class DraftInput:
    """An input of the chain: a value of the module, with the strides of the chain's axes in it.

    `offset` is that of its first element. A constant has its `array`; `order` is the order of the
    axes in which it is stored for the chain. `padding` is what is read around it.
    """

    value: relax.Expr
    layout: AxisStrides
    offset: int
    order: tuple[int, ...]
    dtype: str
    array: NDArray[np.generic] | None = None
    padding: tuple[LaidOutPadding, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftOperator:
    """An operator of the chain; `factors` are the two tensors that a matrix product reads.

    Positions in `body` and `domain` name axes by their numbers.
    """

    out: str
    axes: tuple[int, ...]
    body: Expr
    reduce: Reducer = "none"
    over: tuple[int, ...] = ()
    factors: tuple[str, str] | None = None
    domain: Expr | None = None


def position(a: int) -> Index:
    """The position along an axis of a draft."""
    return Index(str(a))


def positions(e: Expr | None) -> set[int]:
    """The axes whose positions an expression of a draft uses."""
    return {int(node.axis) for node in walk(e) if isinstance(node, Index)} if e else set()


def moved(e: Expr, kept: int, gone: int) -> Expr:
    """The expression with positions along `kept` in place of those along `gone`."""
    return rewrite(e, lambda node: position(kept) if node == position(gone) else node)


@dataclass
class Draft:
    """The operators so far, in order, the inputs by name, and the axes' extents."""

    sizes: dict[int, int] = field(default_factory=dict)
    sources: dict[str, DraftInput] = field(default_factory=dict)
    operators: list[DraftOperator] = field(default_factory=list)

    def fresh(self, wanted: Sequence[str]) -> str:
        """The first of the `wanted` names that is free; if none is, the last one with a number."""
        taken = self.sources.keys() | {operator.out for operator in self.operators}
        numbered = (f"{wanted[-1]}{i}" for i in range(1, len(taken) + 2))
        return next(name for name in (*wanted, *numbered) if name not in taken)

    def axes(self, tensor: str) -> tuple[int, ...]:
        """The axes along which a tensor varies."""
        if tensor in self.sources:
            return tuple(self.sources[tensor].layout)
        return next(operator.axes for operator in self.operators if operator.out == tensor)

    def drop_unread(self) -> None:
        """Leaves out the inputs that no operator reads."""
        every = (e for o in self.operators for e in (o.body, o.domain) if e is not None)
        used = {r.tensor for e in every for r in reads(e)}
        self.sources = {t: source for t, source in self.sources.items() if t in used}

    def order_axes(self, layout: AxisStrides) -> None:
        """Puts the axes of every operator in the order of their strides in a `layout`, and those
        that it lacks last."""
        self.operators[:] = [
            replace(o, axes=tuple(sorted(o.axes, key=lambda a: -layout.get(a, 0))))
            for o in self.operators
        ]

    def merge(self, kept: str, gone: str) -> None:
        """Makes every operator read the input `kept` where it read an equal one, `gone`."""

        def leaf(node: Read | Index) -> Expr:
            return Read(kept, ()) if isinstance(node, Read) and node.tensor == gone else node

        def factors(o: DraftOperator) -> tuple[str, str] | None:
            if o.factors is None:
                return None
            one, two = (kept if t == gone else t for t in o.factors)
            return one, two

        self.operators[:] = [
            replace(o, body=rewrite(o.body, leaf), factors=factors(o)) for o in self.operators
        ]
        del self.sources[gone]


@dataclass(frozen=True, slots=True)
class Finished:
    """The chain, and the arrays of its constants in the shapes that it gives them."""

    chain: Chain
    constants: Mapping[str, NDArray[np.generic]]


def finish(draft: Draft, out: AxisStrides, dtype: str, name: str) -> Finished:
    """The chain of a draft; its output is the result of the last operator.

    `out` are the strides of the axes in the value that this result is, `dtype` its element type.
    """
    draft, out = _with_rows(*_merged(draft, out))
    letters = _letters(draft)
    dims = {t: _dims(draft, t) for t in draft.sources}
    dims |= {operator.out: operator.axes for operator in draft.operators}
    tensors = [_input(draft, t, dims[t], letters) for t in draft.sources]
    for operator in draft.operators[:-1]:
        tensors.append(Tensor(operator.out, tuple(letters[a] for a in operator.axes)))
    last = draft.operators[-1]
    shape = tuple(letters[a] for a in last.axes)
    strides = tuple(out[a] for a in last.axes)
    plain = strides == dense([draft.sizes[a] for a in last.axes])
    tensors.append(Tensor(last.out, shape, dtype, strides=None if plain else strides))
    order = sorted(letters, key=lambda a: ("bmnkh".index(_roles(draft)[a]), a))
    chain = Chain(
        name,
        tuple(Axis(letters[a], draft.sizes[a]) for a in order),
        tuple(tensors),
        tuple(_operator(operator, draft, dims, letters) for operator in draft.operators),
    )
    constants = {
        t: laid_out(s, dims[t], draft.sizes)
        for t, s in draft.sources.items()
        if s.array is not None
    }
    return Finished(chain, constants)


def _operator(
    operator: DraftOperator,
    draft: Draft,
    dims: Mapping[str, tuple[int, ...]],
    letters: Mapping[int, str],
) -> Operator:
    def leaf(node: Read | Index) -> Expr:
        if isinstance(node, Index):
            return Index(letters[int(node.axis)])
        indices = tuple(axis(letters[a]) for a in dims[node.tensor])
        if not indices and node.tensor in draft.sources:
            indices = (Affine((), 0),)  # an input has a dimension at least
        return Read(node.tensor, indices)

    return Operator(
        operator.out,
        tuple(letters[a] for a in operator.axes),
        rewrite(operator.body, leaf),
        operator.reduce,
        tuple(letters[a] for a in operator.over),
        rewrite(operator.domain, leaf) if operator.domain is not None else None,
    )


def _input(draft: Draft, name: str, dims: tuple[int, ...], letters: Mapping[int, str]) -> Tensor:
    source = draft.sources[name]
    shape: tuple[int | str, ...] = tuple(letters[a] for a in dims) or (1,)
    if source.array is not None:
        return Tensor(name, shape, source.dtype, constant=True)
    if source.padding:
        return _padded_input(draft, name, dims, shape)
    strides = tuple(source.layout[a] for a in dims) or (1,)
    extents = [draft.sizes[a] for a in dims] or [1]
    whole = math.prod(int(d) for d in source.value.ty.shape.values)
    if not source.offset and strides == dense(extents) and math.prod(extents) == whole:
        return Tensor(name, shape, source.dtype)
    return Tensor(name, shape, source.dtype, strides=strides, offset=source.offset)


def _padded_input(
    draft: Draft, name: str, dims: tuple[int, ...], shape: tuple[int | str, ...]
) -> Tensor:
    source = draft.sources[name]
    along = {a: i for i, p in enumerate(source.padding) for a in p.axes}
    strides: tuple[Stride, ...] = tuple(
        (Digit(draft.sizes[a], source.layout[a], along[a]),) if a in along else source.layout[a]
        for a in dims
    )
    padding = tuple(Padding(p.extent, p.stride, p.before, p.number) for p in source.padding)
    return Tensor(name, shape, source.dtype, strides=strides, offset=source.offset, padding=padding)


def laid_out(
    source: DraftInput, dims: tuple[int, ...], sizes: Mapping[int, int]
) -> NDArray[np.generic]:
    """A view of the array of a constant with the dimensions `dims`. Chains are lifted to be priced,
    most of them for nothing else: what holds the elements is made when a chain is installed."""
    assert source.array is not None
    flat = np.ascontiguousarray(source.array).reshape(-1)[source.offset :]
    strides = tuple(source.layout[a] * flat.itemsize for a in dims)
    shape = tuple(sizes[a] for a in dims)
    assert sum((sizes[a] - 1) * source.layout[a] for a in dims) < flat.size, "it reads beyond"
    if not dims:
        return flat[:1]  # an input has a dimension at least
    return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)


# --- merging --------------------------------------------------------------------------------


def _merged(draft: Draft, out: AxisStrides) -> tuple[Draft, AxisStrides]:
    """The draft with neighbouring axes merged until no two of them can be."""
    while True:
        rows = [row for operator in draft.operators for row in (operator.axes, operator.over)]
        pairs = (pair for row in rows for pair in pairwise(row))
        pair = next((p for p in pairs if _mergeable(draft, out, *p)), None)
        if pair is None:
            return draft, out
        draft, out = _merge(draft, out, *pair)


def _mergeable(draft: Draft, out: AxisStrides, one: int, two: int) -> bool:
    """Whether axis `two` directly follows axis `one` in every operator, and in the memory of every
    value (constants can be stored anew), and neither moves along padding."""
    for operator in draft.operators:
        if {one, two} & (positions(operator.body) | positions(operator.domain)):
            return False
    if any({one, two} & {*p.axes} for s in draft.sources.values() for p in s.padding):
        return False
    layouts = [(s.layout, s.array is not None) for s in draft.sources.values()]
    for layout, constant in [*layouts, (out, False)]:
        if (one in layout) != (two in layout):
            return False
        if one in layout and not constant and layout[one] != layout[two] * draft.sizes[two]:
            return False
    return all(
        _adjacent(operator.axes, one, two) and _adjacent(operator.over, one, two)
        for operator in draft.operators
    )


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
    operators = [replace(x, axes=kept(x.axes), over=kept(x.over)) for x in draft.operators]
    return Draft({a: n for a, n in sizes.items() if a != two}, sources, operators), layout(out)


def _fused(source: DraftInput, one: int, two: int, sizes: Mapping[int, int]) -> DraftInput:
    if one not in source.layout:
        return source
    array, layout = source.array, source.layout
    if array is not None and layout[one] != layout[two] * sizes[two]:
        rest = [a for a in source.order if a != two]
        after = rest.index(one) + 1
        dims = (*rest[:after], two, *rest[after:])
        array = laid_out(source, dims, sizes)
        layout = dict(zip(dims, dense(array.shape), strict=True))
        source = replace(source, array=array, offset=0)
    order = tuple(a for a in source.order if a != two)
    layout = {a: layout[two] if a == one else s for a, s in layout.items() if a != two}
    return replace(source, layout=layout, order=order)


# --- rows -----------------------------------------------------------------------------------


def _with_rows(draft: Draft, out: AxisStrides) -> tuple[Draft, AxisStrides]:
    """The draft with an axis of extent 1 as the rows of its products, where one of them has none.

    A product of a vector and a matrix is a matrix product with one row. Written so, it is lowered
    as products are, with tiles of its matrix on their way while others are multiplied. A product
    whose matrix the chain computes of data stays as it is.
    """
    products, weights = list(_products(draft)), _weights(draft)
    matrices = {o.factors[1] for o, *_ in products if o.factors is not None}
    known = draft.sources.keys() | weights
    if all(left - right for _, left, right in products) or not matrices <= known:
        return draft, out
    row = max(draft.sizes) + 1
    batch = {a for o, left, right in products for a in left & right & set(o.axes)}

    def placed(axes: tuple[int, ...]) -> tuple[int, ...]:
        at = next((i for i, a in enumerate(axes) if a not in batch), len(axes))
        return (*axes[:at], row, *axes[at:])

    def strided(layout: AxisStrides) -> AxisStrides:
        steps = [n * draft.sizes[a] for a, n in layout.items() if a not in batch]
        return {**layout, row: max(steps, default=1)}

    sources = {
        t: replace(s, layout=strided(s.layout), order=placed(s.order))
        if s.array is None and t not in matrices
        else s
        for t, s in draft.sources.items()
    }
    operators = [
        o if o.out in weights else replace(o, axes=placed(o.axes)) for o in draft.operators
    ]
    return Draft({**draft.sizes, row: 1}, sources, operators), strided(out)


def _weights(draft: Draft) -> set[str]:
    """What operators compute from constants alone."""
    found = {t for t, s in draft.sources.items() if s.array is not None}
    for o in draft.operators:
        parts = [e for e in (o.body, o.domain) if e is not None]
        if found.issuperset(r.tensor for e in parts for r in reads(e)):
            found.add(o.out)
    return found - draft.sources.keys()


# --- naming ---------------------------------------------------------------------------------


def _products(draft: Draft) -> Iterator[tuple[DraftOperator, set[int], set[int]]]:
    for operator in draft.operators:
        if operator.factors is not None:
            left, right = (set(draft.axes(t)) for t in operator.factors)
            yield operator, left, right


def _roles(draft: Draft) -> dict[int, str]:
    """The role of each axis in the products, by the paper's letters: b, m, n, k or h.

    Without a product, what is reduced is n and everything else m.
    """
    seen = dict.fromkeys(
        a for operator in draft.operators for a in (*operator.axes, *operator.over)
    )
    products = list(_products(draft))
    if not products:
        reduced = {a for operator in draft.operators for a in operator.over}
        return {a: "n" if a in reduced else "m" for a in seen}
    (first, left, right), *more = products
    roles = {}
    for a in seen:
        shared = a in left and a in right and all(a in x and a in y for _, x, y in more)
        if a in first.over:
            roles[a] = "k"
        elif any(a in operator.over for operator, _, _ in more):
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
    """The order of an input's dimensions: batch axes first, unless they are contiguous, then by
    falling stride."""
    source = draft.sources[tensor]
    pair = next((p for p in _products(draft) if tensor in (p[0].factors or ())), None)
    if source.array is not None or pair is None:
        return tuple(a for a in source.order if a in source.layout)
    operator, left, right = pair
    shared = {a for a in left & right & set(operator.axes) if source.layout.get(a) != 1}
    return tuple(sorted(source.layout, key=lambda a: (a not in shared, -source.layout[a], a)))
