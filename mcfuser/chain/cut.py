"""Cuts a chain into pieces that run one after the other, and narrows the values that cross."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import assert_never

from mcfuser.chain.part import fresh, subchain
from mcfuser.chain.roles import dequantized, made_weights
from mcfuser.chain.values import BYTES, Chain, Operator, Tensor
from mcfuser.chain.whole import narrow_type, whole_range
from mcfuser.expr import (
    DISCRETE,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    axes,
    read,
    reads,
    rewrite,
)

Cut = tuple[int, ...]
"""How many operators each piece has, in the chain's order."""
WIDE = ""
"""In place of a dtype: the value is read without a cast."""


def unfused_cut(chain: Chain) -> Cut:
    """The cut into the most pieces: each product with its epilogue, and with the maps that make its
    weights of constants, or dequantize what it reads; and the operators between two products
    together (a softmax, a norm)."""
    groups: list[list[Operator]] = []
    weights = made_weights(chain) | dequantized(chain)
    for o in chain.operators:
        before = groups[-1] if groups else []
        begun = bool(before) and before[-1].out in weights
        joins = begun or (o.product is None and o.out not in weights)
        if before and joins and (begun or _continues(before, o, weights)):
            before.append(o)
        else:
            groups.append([o])
    return tuple(len(group) for group in groups)


def _continues(group: Sequence[Operator], o: Operator, weights: Collection[str]) -> bool:
    """Whether an operator that is no product joins the group: it is the epilogue of the group's
    product, or the group has no product."""
    head = next(x for x in group if x.out not in weights)
    if head.product is None:
        return True
    return o.reduce == "none" and set(o.axes) == set(head.axes)


def reduction_cut(chain: Chain) -> Cut:
    """The cut behind each reduction; maps that run along no other axes than what it leaves are in
    its piece. A norm's mean, its variance and its quotients are three pieces."""
    counts, left = [0], set[str]()
    for o in chain.operators:
        if left and (o.reduce != "none" or not left.issuperset(o.axes)):
            counts.append(0)
            left = set()
        counts[-1] += 1
        if o.reduce != "none":
            left = set(o.axes)
    return tuple(counts)


def intermediate_cuts(unfused: Cut) -> Iterator[Cut]:
    """Every cut with at least two pieces, and fewer than the unfused cut.

    Each piece of such a cut is made of neighbouring pieces of the unfused one.
    """
    for count in range(1, len(unfused) - 1):
        for ends in combinations(range(1, len(unfused)), count):
            edges = (0, *ends, len(unfused))
            yield tuple(sum(unfused[a:b]) for a, b in pairwise(edges))


def cut(chain: Chain, where: Cut) -> tuple[Chain, ...]:
    """The pieces of a cut as chains, named after the whole chain and their number from 1.

    A value that all later pieces cast to one narrower dtype is stored in that dtype: they read
    fewer bytes, and a product can use it without a cast. Whole numbers that fit are stored as one
    byte, or two; those that are bytes less a single number as bytes, and what reads them subtracts
    it.
    """
    if len(where) == 1:
        return (chain,)
    first = 0
    groups: list[list[str]] = []
    for count in where:
        groups.append([o.out for o in chain.operators[first : first + count]])
        first += count
    for i, group in enumerate(groups):
        for out in tuple(group):
            chain = _rounded(chain, out, group, [o for later in groups[i + 1 :] for o in later])
    for i, group in enumerate(groups[:-1]):
        chain = _less_a_number(chain, group, groups[i + 1 :])
    pieces = [subchain(chain, g, f"{chain.name}/{i + 1}") for i, g in enumerate(groups)]
    for i, piece in enumerate(pieces):
        for out in piece.outputs:
            if out not in chain.outputs and (dtype := _whole_type(piece, out)) is not None:
                pieces[i:] = [_typed(p, out, dtype) for p in pieces[i:]]
    return tuple(pieces)


def parts(chain: Chain) -> tuple[Chain, ...]:
    """The chains of the unfused cut."""
    return cut(chain, unfused_cut(chain))


# --- rounding where it crosses ----------------------------------------------------------------


def _rounded(chain: Chain, out: str, group: list[str], later: Sequence[str]) -> Chain:
    """The chain in which the operators of later pieces read the value `out` in the narrower dtype
    to which all of them cast it.

    Where the operators of its own piece (`group`) cast it, too, the value itself is stored in that
    dtype. Else a copy is, whose operator is added to `group`.
    """
    outside = [chain.operator(o) for o in later]
    dtypes = {d for o in outside for d in _dtypes(o, out)}
    wide = chain.tensor(out)
    if out in chain.outputs or len(dtypes) != 1 or WIDE in dtypes:
        return chain
    dtype = dtypes.pop()
    if dtype in DISCRETE or wide.dtype in DISCRETE:
        return chain
    if BYTES[dtype] >= BYTES[wide.dtype]:
        return chain
    inside = [chain.operator(o) for o in group]
    if all(d == dtype for o in inside for d in _dtypes(o, out)):
        narrow = replace(wide, dtype=dtype)
        operators = [_reading(o, out, out) for o in chain.operators]
        tensors = tuple(narrow if t.name == out else t for t in chain.tensors)
        return replace(chain, operators=tuple(operators), tensors=tensors)
    return _copied(chain, wide, dtype, group, {o.out for o in outside})


def _copied(chain: Chain, wide: Tensor, dtype: str, group: list[str], later: set[str]) -> Chain:
    writer = chain.operator(wide.name)
    copy = fresh(chain, f"{wide.name}_{dtype}")
    body = Cast(read(wide.name, *writer.axes), dtype)
    operators: list[Operator] = []
    for o in chain.operators:
        operators.append(_reading(o, wide.name, copy) if o.out in later else o)
        if o.out == group[-1]:
            operators.append(Operator(copy, writer.axes, body))
    group.append(copy)
    shape = chain.tensor(wide.name).shape
    tensors = (*chain.tensors, Tensor(copy, shape, dtype))
    return replace(chain, operators=tuple(operators), tensors=tensors)


def _less_a_number(chain: Chain, group: list[str], later: Sequence[list[str]]) -> Chain:
    """The chain in which the last value of a `group`, bytes less a single number that it is given,
    is made of these bytes by the one later group that reads it."""
    out = group[-1]
    made, readers = chain.operator(out), [g for g in later if _read_in(chain, g, out)]
    if out in chain.outputs or made.reduce != "none" or made.domain or len(readers) != 1:
        return chain
    if not isinstance(made.body, Call) or made.body.op != "sub" or _read_in(chain, group, out):
        return chain
    numbers, number = made.body.args
    given = not axes(number) and all(r.tensor in chain.inputs for r in reads(number))
    found, difference = (narrow_type(whole_range(chain, e)) for e in (numbers, made.body))
    if not given or found is None or BYTES[found] > 1 or difference == found:
        return chain
    whole = fresh(chain, f"{out}_whole")
    less = Call("sub", (read(whole, *made.axes), number))
    group[-1] = whole
    readers[0].insert(0, out)
    operators: list[Operator] = []
    for o in chain.operators:
        if o.out == out:
            operators.append(Operator(whole, made.axes, numbers))
            o = replace(made, body=less)
        operators.append(o)
    tensors = (*chain.tensors, replace(chain.tensor(out), name=whole))
    return replace(chain, operators=tuple(operators), tensors=tensors)


def _read_in(chain: Chain, group: Sequence[str], name: str) -> bool:
    """Whether an operator of a group reads a value."""
    return any(o.out in group for o in chain.readers(name))


def _whole_type(piece: Chain, out: str) -> str | None:
    """The narrow integer type that has all numbers of a result, a map of real ones that is whole
    and that its own piece does not read."""
    made = piece.operator(out)
    if made.reduce != "none" or piece.tensor(out).dtype != "float32" or piece.readers(out):
        return None
    return narrow_type(whole_range(piece, Read(out, ())))


def _typed(piece: Chain, name: str, dtype: str) -> Chain:
    """The piece whose input or output `name`, of real numbers that are whole, is a narrow integer,
    where it has such; what reads it makes a real number of it."""
    if name not in (*piece.inputs, *piece.outputs):
        return piece

    def leaf(node: Read | Index) -> Expr:
        own = isinstance(node, Read) and node.tensor == name
        return Cast(node, "float32") if own else node

    tensors = tuple(replace(t, dtype=dtype) if t.name == name else t for t in piece.tensors)
    operators = tuple(
        replace(o, body=rewrite(o.body, leaf), domain=o.domain and rewrite(o.domain, leaf))
        for o in piece.operators
    )
    return replace(piece, tensors=tensors, operators=operators)


def _dtypes(o: Operator, tensor: str) -> Iterator[str]:
    """The dtype of each cast through which an operator reads a tensor, WIDE for a read without."""
    yield from _casts(o.body, tensor)
    if o.domain is not None:
        yield from (WIDE for r in reads(o.domain) if r.tensor == tensor)


def _casts(e: Expr, tensor: str) -> Iterator[str]:
    match e:
        case Cast(Read(name), dtype):
            yield from (dtype,) if name == tensor else ()
        case Read():
            yield from (WIDE,) if e.tensor == tensor else ()
        case Cast():
            yield from _casts(e.arg, tensor)
        case Call():
            for arg in e.args:
                yield from _casts(arg, tensor)
        case Const() | Index():
            pass
        case _:
            assert_never(e)


def _reading(o: Operator, tensor: str, narrow: str) -> Operator:
    """The operator that reads the narrow tensor where it read the wide one and rounded it."""
    return replace(o, body=_uncast(o.body, tensor, narrow))


def _uncast(e: Expr, tensor: str, narrow: str) -> Expr:
    if isinstance(e, Cast):
        if isinstance(e.arg, Read) and e.arg.tensor == tensor:
            return Read(narrow, e.arg.indices)
        return Cast(_uncast(e.arg, tensor, narrow), e.dtype)
    if isinstance(e, Call):
        return Call(e.op, tuple(_uncast(a, tensor, narrow) for a in e.args))
    return e
