"""The plain meaning of a chain: every operator over whole tensors, in float64, casts ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.algebra.quotient import guarded
from mcfuser.chain import LOWEST, Chain, Operator, Product, product
from mcfuser.expr import Cast, Const, Expr, Index, Read, axes

Array = NDArray[Any]

_OPS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, "pow": np.power, "neg": np.negative, "abs": np.abs, "exp": np.exp,
    "exp2": np.exp2, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "floor": np.floor,
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not, "select": np.where,
}  # fmt: skip


def value(e: Expr, read: Callable[[Read], Any], index: Callable[[str], Any]) -> Any:
    """The value of an expression, given those of its reads and axes; broadcasts as numpy does."""
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Index):
        return index(e.axis)
    if isinstance(e, Read):
        return read(e)
    if isinstance(e, Cast):
        return value(e.arg, read, index)
    return _OPS[e.op](*(value(a, read, index) for a in e.args))


def logical(chain: Chain, name: str, array: Array) -> Array:
    """The tensor as the chain indexes it, a view of the array in which it really lies."""
    tensor = chain.tensor(name)
    if tensor.strides is None:
        return array.reshape(-1)[tensor.offset :][: math.prod(chain.shape(name))].reshape(
            chain.shape(name)
        )
    flat = array.reshape(-1)[tensor.offset :]
    strides = tuple(s * flat.itemsize for s in tensor.strides)
    return np.lib.stride_tricks.as_strided(flat, chain.shape(name), strides)


def evaluate(chain: Chain, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every operator's result, float64, from the chain's inputs as the chain indexes them.

    A quotient by a sum of the chain is 0 where its numerator is (algebra.quotient).
    """
    chain = guarded(chain)
    known = {n: np.asarray(a, np.float64) for n, a in inputs.items()}
    with np.errstate(all="ignore"):
        for operator in chain.operators:
            known[operator.out] = _run(chain, operator, known)
    return {o.out: known[o.out] for o in chain.operators}


def _run(chain: Chain, o: Operator, known: Mapping[str, Array]) -> Array:
    roles = product(o)
    if roles is not None and (side := _masked_side(o, roles)) is not None:
        return _contract(chain, o, roles, known, side)

    def over_space(e: Expr) -> Any:
        return _over(chain, o, known, e)

    shape = tuple(chain.size(a) for a in o.related)
    body = np.broadcast_to(np.asarray(over_space(o.body), np.float64), shape)
    if o.domain is not None:
        body = np.where(over_space(o.domain), body, LOWEST if o.reduce == "max" else 0.0)
    reduced = tuple(range(len(o.axes), len(shape)))
    if o.reduce == "none":
        return np.array(body)
    if o.reduce == "sum":
        return np.array(body.sum(axis=reduced))
    return np.asarray(np.maximum(body.max(axis=reduced), LOWEST))


def _over(chain: Chain, o: Operator, known: Mapping[str, Array], e: Expr) -> Any:
    """An expression over an operator's iteration space."""
    return value(
        e, lambda r: gather(chain, r, o.related, known), lambda a: _range(chain, a, o.related)
    )


def _masked_side(o: Operator, roles: Product) -> Read | None:
    """The operand of a product that its domain can mask: one that has all of the domain's axes."""
    over = set(axes(o.domain)) if o.domain is not None else set()
    return next((r for r in (roles.left, roles.right) if over <= set(axes(r))), None)


def _contract(
    chain: Chain, o: Operator, roles: Product, known: Mapping[str, Array], side: Read
) -> Array:
    """A product of two matrices for each batch position: einsum takes no BLAS for batches. The
    domain masks one `side`."""

    def operand(r: Read, groups: Sequence[Sequence[str]]) -> Array:
        order = [a for g in groups for a in g]
        full = gather(chain, r, o.related, known)
        if o.domain is not None and r == side:
            full = np.where(_over(chain, o, known, o.domain), full, 0.0)
        full = full.transpose([o.related.index(a) for a in order]
                + [i for i, a in enumerate(o.related) if a not in order])  # fmt: skip
        return full.reshape([math.prod(chain.size(a) for a in g) for g in groups])

    left = operand(roles.left, (roles.batch, roles.rows, roles.depth))
    right = operand(roles.right, (roles.batch, roles.depth, roles.columns))
    found = (*roles.batch, *roles.rows, *roles.columns)
    result: Array = (left @ right).reshape([chain.size(a) for a in found])
    return np.ascontiguousarray(result.transpose([found.index(a) for a in o.axes]))


def gather(chain: Chain, r: Read, space: Sequence[str], known: Mapping[str, Array]) -> Array:
    """A read over an iteration space: extent 1 along the axes that it does not depend on."""
    at = tuple(
        sum((c * _range(chain, a, space) for a, c in i.terms), np.full((1,) * len(space), i.offset))
        for i in r.indices
    )
    found: Array = known[r.tensor][at] if at else known[r.tensor].reshape((1,) * len(space))
    return found


def _range(chain: Chain, a: str, space: Sequence[str]) -> Array:
    shape = [1] * len(space)
    shape[space.index(a)] = chain.size(a)
    return np.arange(chain.size(a)).reshape(shape)
