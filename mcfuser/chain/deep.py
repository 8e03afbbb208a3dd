"""Weights stored so that positions along the depth of their product lie side by side.

The tensor cores take a right operand of 32 bits so. Where it comes otherwise, threads turn every
tile of it on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcfuser.chain.values import Chain, Operator, rewritten, sources
from mcfuser.expr import Index, Read


def with_depth_last(chain: Chain) -> tuple[Chain, Mapping[str, tuple[int, ...]]]:
    """The chain whose float32 constants have the longest axis of the depth as their last dimension,
    where one product alone reads them, as its right operand, and along plain axes; and, for each of
    them, which of its dimensions are now where."""
    orders = dict[str, tuple[int, ...]]()
    for o in chain.operators:
        name = _weights(chain, o)
        if name is None:
            continue
        shape = chain.tensor(name).shape
        deep = max(o.over, key=chain.size)
        if shape[-1] != deep:
            at = shape.index(deep)
            orders[name] = (*(i for i in range(len(shape)) if i != at), at)
    if not orders:
        return chain, orders

    def leaf(node: Read | Index) -> Read | Index:
        if not isinstance(node, Read) or node.tensor not in orders:
            return node
        return Read(node.tensor, tuple(node.indices[i] for i in orders[node.tensor]))

    tensors = tuple(
        replace(t, shape=tuple(t.shape[i] for i in orders[t.name])) if t.name in orders else t
        for t in chain.tensors
    )
    operators = tuple(rewritten(o, leaf) for o in chain.operators)
    return replace(chain, tensors=tensors, operators=operators), orders


def _weights(chain: Chain, o: Operator) -> str | None:
    """The constant that only this operator reads, once, as a product's right operand."""
    roles = o.product
    if roles is None or not (roles.rows and roles.columns):
        return None
    tensor = chain.tensor(roles.right.tensor)
    alone = [r for each in chain.operators for r in sources(each) if r.tensor == tensor.name]
    plain = all(i.plain == d for i, d in zip(roles.right.indices, tensor.shape, strict=True))
    stored = tensor.constant and tensor.dtype == "float32" and tensor.strides is None
    return tensor.name if stored and plain and len(alone) == 1 else None
