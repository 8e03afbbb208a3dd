"""Merges the axes of a side of a matrix product where they are too short to be tiled one by one.

A convolution has a row for each position of a picture, and sums over a window for each channel;
windows of a picture are rows along four axes. Along one axis, whose positions the tensors have in
several dimensions of their arrays (`Digit`), rows need no padding but at the very end, a tile of
them is a matrix, and there are fewer orders of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mcfuser.chain.roles import contiguous_axes
from mcfuser.chain.strides import dense, strides_of
from mcfuser.chain.values import (
    BYTES,
    Axis,
    Chain,
    Digit,
    Stride,
    Tensor,
    digits,
    rewritten,
    sources,
)
from mcfuser.expr import Expr, Index, Read, axes, axis, walk

ALONE = 64
"""An axis whose extent is a multiple of this is tiled well by itself."""
VECTOR = 16
"""Bytes that a thread loads at once."""


def merged(chain: Chain) -> Chain:
    """The chain with one axis in place of several that are together a side of a matrix product,
    where none of them is tiled well alone; of its depth all but the longest, where what is summed
    does not lie side by side, or all but what does, where that is tiled well. Groups of channels
    are merged with the channels of each, too, where a map reads numbers of groups.

    It computes the same elements of the same arrays. The merged axis has the name of the first one.
    """
    for group in _groups(chain):
        chain = _along_one(chain, group)
    for group in _grouped(chain):
        chain = _along_one(_repeated(chain, group), group)
    return chain


def rows_merged(chain: Chain) -> Chain:
    """The chain with one axis in place of several that are the rows of a matrix product with
    constants, where their positions lie side by side in each tensor but the product's left operand:
    of that one the product reads an element for each row, wherever it lies, but other operators
    read vectors. Where they lie side by side there, too, none of them is tiled well alone. Pictures
    of which a batch has one after the other, with all their channels, stay apart."""
    for o in chain.operators:
        roles = o.product
        if roles is None or not roles.columns or not chain.tensor(roles.right.tensor).constant:
            continue
        for group in _alike(chain, roles.rows):
            ordered = _ordered(chain, group, None)
            for inner in (ordered[i:] for i in range(len(ordered) - 1)):
                made = _along_one(chain, inner)
                apart = _apart(made, roles.left.tensor)
                if (apart or _short(chain, inner)) and _beside(made):
                    return rows_merged(made)
    return chain


def _beside(chain: Chain) -> bool:
    """Whether nothing but the left operands of products with columns has several digits."""
    apart = {t.name for t in chain.tensors if _apart(chain, t.name)}
    for o in chain.operators:
        roles = o.product
        left = roles.left.tensor if roles is not None and roles.columns else None
        if o.out in apart or any(r.tensor in apart and r.tensor != left for r in sources(o)):
            return False
    return True


def _apart(chain: Chain, tensor: str) -> bool:
    """Whether a tensor has the positions of a dimension along several of its array, or padding."""
    return any(not isinstance(s, int) for s in chain.tensor(tensor).strides or ())


def _groups(chain: Chain) -> Iterator[tuple[str, ...]]:
    """Axes to be merged, outermost first."""
    taken = set[str]()
    for o in chain.operators:
        roles = o.product
        if roles is None or not (roles.rows and roles.columns):
            continue
        for side in (roles.rows, roles.columns, roles.depth):
            for group in _alike(chain, [a for a in side if a not in taken]):
                ordered = _ordered(chain, group, roles.left if side == roles.depth else None)
                if side == roles.depth and (alone := _alone(chain, roles.left, ordered)):
                    ordered = tuple(a for a in ordered if a != alone)
                if len(ordered) > 1 and _short(chain, ordered):
                    taken |= {*ordered}
                    yield ordered


def _grouped(chain: Chain) -> Iterator[tuple[str, str]]:
    """The two innermost axes of a map's result, if the inner one is not tiled well alone and some
    input has the outer one without it; they lie side by side wherever both are."""
    o, *others = chain.operators
    group = _ordered(chain, o.axes, None)[-2:]
    if others or o.reduce != "none" or len(group) < 2:
        return
    if not all(isinstance(chain.extent(a), int) and _plain(chain, a) for a in group):
        return
    outer, inner = group
    size, lacking = chain.size(inner), False
    having = {r.tensor: [i.plain for i in r.indices] for r in sources(o)} | {o.out: [*o.axes]}
    for name, names in having.items():
        strides = dict(zip(names, strides_of(chain, name), strict=True))
        far, near = strides.get(outer), strides.get(inner)
        if chain.tensor(name).padding:
            return
        if isinstance(far, int) and isinstance(near, int):
            if far != size * near:
                return
        elif far is not None and near is not None:
            return
        lacking |= far is not None and near is None
    if lacking and size % ALONE and chain.size(outer) * size % ALONE == 0:
        yield outer, inner


def _repeated(chain: Chain, group: tuple[str, str]) -> Chain:
    """The map whose inputs that have one of two axes have the other one, too, along which they do
    not vary."""
    (o,), lacking = chain.operators, dict[str, str]()
    for r in sources(o):
        missing = [a for a in group if a not in axes(r)]
        if len(missing) == 1:
            lacking[r.tensor] = missing[0]

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor not in lacking:
            return node
        return Read(node.tensor, (*node.indices, axis(lacking[node.tensor])))

    def repeated(t: Tensor) -> Tensor:
        strides = (*strides_of(chain, t.name), 0)
        return replace(t, shape=(*t.shape, lacking[t.name]), strides=strides)

    tensors = tuple(repeated(t) if t.name in lacking else t for t in chain.tensors)
    return replace(chain, tensors=tensors, operators=(rewritten(o, leaf),))


def _alone(chain: Chain, read: Read, depth: Sequence[str]) -> str | None:
    """The axis of a depth that stays by itself: the longest one; what lies side by side where that
    is tiled well, and none where it is not."""
    if not _vectors(chain, read, depth[-1]):
        return max(reversed(depth), key=chain.size)
    return None if _short(chain, depth[-1:]) else depth[-1]


def _short(chain: Chain, group: Sequence[str]) -> bool:
    """Whether no axis is tiled well alone."""
    return not any(chain.size(a) % ALONE == 0 for a in group)


def _alike(chain: Chain, side: Sequence[str]) -> list[tuple[str, ...]]:
    """Those of some axes that may be one: every operator and every tensor has all of them or
    none."""
    alike: dict[object, list[str]] = {}
    for a in side:
        if isinstance(chain.extent(a), int) and chain.size(a) > 1 and _plain(chain, a):
            alike.setdefault(_uses(chain, a), []).append(a)
    return [tuple(group) for group in alike.values() if len(group) > 1]


def _plain(chain: Chain, a: str) -> bool:
    """Whether the axis is nothing but a dimension of each tensor that it runs along, none of whose
    strides is known at run time only."""
    dimension = {o.out: o.axes.index(a) if a in o.axes else -1 for o in chain.operators}
    for o in chain.operators:
        for e in (o.body, o.domain):
            if e is not None and any(isinstance(n, Index) and n.axis == a for n in walk(e)):
                return False
        for r in sources(o):
            along = [i for i, index in enumerate(r.indices) if a in index.axes]
            found = dimension.setdefault(r.tensor, along[0] if along else -1)
            if along != ([found] if found >= 0 else []) or (along and r.indices[found].plain != a):
                return False
            if along and r.tensor in chain.inputs and not _fixed(chain, r.tensor):
                return False
        if a in o.axes and o.out in chain.outputs and not _fixed(chain, o.out):
            return False
    return True


def _fixed(chain: Chain, name: str) -> bool:
    """Whether a tensor's strides are numbers: only the extent of its first dimension may be known
    at run time only, which no stride depends on."""
    t = chain.tensor(name)
    inner = (d for d in t.shape[1:] if isinstance(d, str))
    return t.strides is not None or all(isinstance(chain.extent(d), int) for d in inner)


def _uses(chain: Chain, a: str) -> object:
    """Which operators keep an axis, which reduce it, and which tensors it runs along."""
    kept = tuple(o.out for o in chain.operators if a in o.axes)
    over = tuple(o.out for o in chain.operators if a in o.over)
    read = tuple(r.tensor for o in chain.operators for r in sources(o) if a in axes(r))
    return kept, over, read


def _ordered(chain: Chain, group: Sequence[str], read: Read | None) -> tuple[str, ...]:
    """The axes as they follow each other in the array of a read, or of the output that has them;
    as the operators have them where no output does."""
    if read is not None:
        name, names = read.tensor, [i.plain for i in read.indices]
    else:
        having = (o for o in map(chain.operator, chain.outputs) if {*group} <= {*o.axes})
        if (o := next(having, None)) is None:
            return tuple(group)
        name, names = o.out, [*o.axes]
    steps = dict(zip(names, strides_of(chain, name), strict=True))
    return tuple(sorted(group, key=lambda a: -digits(steps[a], 1)[0].stride))


def _vectors(chain: Chain, read: Read, a: str) -> bool:
    """Whether positions of an axis, and of no other one, lie side by side in the array of a read,
    as many as are loaded at once."""
    beside = contiguous_axes(chain, read) == [a]
    return beside and chain.size(a) * BYTES[chain.tensor(read.tensor).dtype] >= VECTOR


def _along_one(chain: Chain, group: tuple[str, ...]) -> Chain:
    """The chain with the axes of a group, outermost first, as one."""
    name = next(a.name for a in chain.axes if a.name in group)
    last, size = group[-1], math.prod(map(chain.size, group))

    def joined(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if a == last else a for a in names if a not in group[:-1])

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or last not in axes(node):
            return node
        kept = [i for i in node.indices if i.plain not in group[:-1]]
        return Read(node.tensor, tuple(axis(name) if i.plain == last else i for i in kept))

    indices = {r.tensor: [i.plain for i in r.indices] for o in chain.operators for r in sources(o)}
    indices |= {o.out: list(o.axes) for o in chain.operators}
    tensors = tuple(
        _tensor(chain, t, indices[t.name], group, name)
        if last in indices.get(t.name, ())
        else replace(t, shape=_numbered(chain, t, group))
        for t in chain.tensors
    )
    every = (Axis(name, size) if a.name == name else a for a in chain.axes)
    left = tuple(a for a in every if a.name == name or a.name not in group)
    operators = tuple(
        replace(rewritten(o, leaf), axes=joined(o.axes), over=joined(o.over))
        for o in chain.operators
    )
    return replace(chain, axes=left, tensors=tensors, operators=operators)


def _numbered(chain: Chain, t: Tensor, group: tuple[str, ...]) -> tuple[int | str, ...]:
    """A tensor's dimensions, those of the axes of a group as numbers."""
    return tuple(chain.size(d) if isinstance(d, str) and d in group else d for d in t.shape)


def _tensor(
    chain: Chain, t: Tensor, names: Sequence[str | None], group: tuple[str, ...], name: str
) -> Tensor:
    """A tensor with one dimension, called `name`, along the axes of a group."""
    strides, at = strides_of(chain, t.name), {a: i for i, a in enumerate(names) if a in group}
    along = [d for a in group for d in digits(strides[at[a]], chain.size(a))]
    kept = [i for i, a in enumerate(names) if a not in group[:-1]]
    last = at[group[-1]]
    numbered = _numbered(chain, t, group)
    shape = tuple(name if i == last else numbered[i] for i in kept)
    if t.name not in (*chain.inputs, *chain.outputs):
        return replace(t, shape=shape)
    steps = tuple(_joined(along) if i == last else strides[i] for i in kept)
    size = math.prod(d.extent for d in along)
    extents = [size if i == last else chain.shape(t.name)[i] for i in kept]
    plain = t.strides is None and steps == dense(extents)
    return replace(t, shape=shape, strides=None if plain else steps)


def _joined(found: Sequence[Digit]) -> Stride:
    """Digits of which none continues the next: a plain stride where one is left. Those that move
    along padding stay."""
    kept: list[Digit] = []
    for d in found:
        plain = kept and kept[-1].padding is None and d.padding is None
        if plain and kept[-1].stride == d.stride * d.extent:
            kept[-1] = Digit(kept[-1].extent * d.extent, d.stride)
        else:
            kept.append(d)
    return kept[0].stride if len(kept) == 1 and kept[0].padding is None else tuple(kept)
