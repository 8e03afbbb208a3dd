"""Chains: axes, tensors, operators; their roles, documents, short forms and parts."""

from mcfuser.chain.cut import Cut, cut, intermediate_cuts, parts, unfused_cut
from mcfuser.chain.document import from_json, parse_operator, to_json
from mcfuser.chain.forms import attention, from_text, gemm
from mcfuser.chain.part import fixed, fresh, inline, run_time, subchain, under_names, without_dead
from mcfuser.chain.roles import Product, batch_axes, flops, nbytes, product, products
from mcfuser.chain.strides import flat_size, strides_of
from mcfuser.chain.values import (
    BYTES,
    LOWEST,
    WHOLE,
    Axis,
    Bounds,
    Chain,
    Extent,
    Operator,
    Reducer,
    Tensor,
    canonical,
    identifier,
    largest,
    lowest,
    sources,
)

__all__ = [
    "BYTES",
    "LOWEST",
    "WHOLE",
    "Axis",
    "Bounds",
    "Chain",
    "Cut",
    "Extent",
    "Operator",
    "Product",
    "Reducer",
    "Tensor",
    "attention",
    "batch_axes",
    "canonical",
    "cut",
    "fixed",
    "flat_size",
    "flops",
    "fresh",
    "from_json",
    "from_text",
    "gemm",
    "identifier",
    "inline",
    "intermediate_cuts",
    "largest",
    "lowest",
    "nbytes",
    "parse_operator",
    "parts",
    "product",
    "products",
    "run_time",
    "sources",
    "strides_of",
    "subchain",
    "to_json",
    "under_names",
    "unfused_cut",
    "without_dead",
]
