"""Which statements are matrix products, and which of them are not for the tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mcfuser.chain import Chain, Product
from mcfuser.expr import Call, Cast, Expr, Read, axes
from mcfuser.lowering.triton.instructions import HALF
from mcfuser.space.statement import Buffer, Compute, Statement, statements


def products(
    chain: Chain, buffers: Mapping[str, Buffer], body: Sequence[Statement]
) -> dict[str, Product]:
    """The matrix products of some statements by the tensors that they compute; what a product reads
    is named by its buffer."""
    roles_of = {}
    for s, _ in statements(body):
        if isinstance(s, Compute) and (roles := _product(chain, buffers, s)) is not None:
            roles_of[s.operator.out] = roles
    return roles_of


def _product(chain: Chain, buffers: Mapping[str, Buffer], s: Compute) -> Product | None:
    roles = replace(s.operator, body=s.body).product
    if roles is None or not (roles.rows and roles.columns and roles.depth):
        return None
    assert isinstance(s.body, Call)
    dtypes = operand_dtypes(chain, buffers, s.body)
    if not dtypes <= {*HALF, "float32"} or buffers[s.buffer].dtype != "float32":
        return None
    if s.domain is not None:
        masked = {a for a in axes(s.domain) if a not in roles.batch}
        sides = ((roles.left, roles.rows), (roles.right, roles.columns))
        held = [masked <= {*own, *roles.depth} for _, own in sides]
        loaded = [buffers[r.tensor].tensor in chain.inputs for r, _ in sides]
        # what is computed may be infinite outside, of which zero times is no number
        if not any(held) or not all(h or x for h, x in zip(held, loaded, strict=True)):
            return None
    return roles


def is_wide(chain: Chain, buffers: Mapping[str, Buffer], s: Compute) -> bool:
    """Whether the operands of a product enter it in float32, which the tensor cores would round to
    ten bits: threads multiply them one by one, or parts of them are multiplied (`precision`)."""
    assert isinstance(s.body, Call)
    return entering(operand_dtypes(chain, buffers, s.body)) == "float32"


def entering(dtypes: set[str]) -> str:
    """The type in which both sides of a product enter it, which have these types."""
    return next(iter(dtypes)) if len(dtypes) == 1 else "float32"


def operand_dtypes(chain: Chain, buffers: Mapping[str, Buffer], body: Call) -> set[str]:
    """The types of both sides of a product."""
    return {operand_dtype(chain, buffers, e) for e in body.args}


def operand_dtype(chain: Chain, buffers: Mapping[str, Buffer], e: Expr) -> str:
    """The type in which a side of a product enters it: a tensor kept in half precision enters in
    half precision."""
    if isinstance(e, Cast):
        return e.dtype
    assert isinstance(e, Read)
    buffer = buffers[e.tensor]
    stored = chain.tensor(buffer.tensor).dtype
    return stored if stored in HALF else buffer.dtype


def row_axes(products: Iterable[Product], extends: Callable[[str], bool]) -> set[str]:
    """The axes along which products have rows, of those along which tiles extend."""
    return {a for roles in products for a in roles.rows if extends(a)}
