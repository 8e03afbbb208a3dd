"""Which reductions need which others over an axis that both reduce."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.chain import Chain
from mcfuser.expr import Call, Const, Expr, Index, Read, at, reads, rewrite


@dataclass(frozen=True, slots=True)
class Dependence:
    """`target` reads, directly or through maps, `moving`, and both reduce over `axis`."""

    target: str
    moving: str
    axis: str


def through_maps(chain: Chain, e: Expr) -> Expr:
    """An expression with every map that it reads written out, down to reductions; a map with a
    domain is zero outside it."""

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor in chain.inputs:
            return node
        source = chain.operator(node.tensor)
        if source.reduce != "none":
            return node
        body = source.body
        if source.domain is not None:
            body = Call("select", (source.domain, body, Const(0.0)))
        return rewrite(at(body, dict(zip(source.axes, node.indices, strict=True))), leaf)

    return rewrite(e, leaf)


def dependences(chain: Chain) -> tuple[Dependence, ...]:
    """Every pair of reductions over a common axis of which one reads the other's result."""
    found: list[Dependence] = []
    for target in chain.operators:
        if target.reduce == "none":
            continue
        sources = [through_maps(chain, e) for e in (target.body, target.domain) if e is not None]
        for name in dict.fromkeys(r.tensor for e in sources for r in reads(e)):
            if name in chain.inputs:
                continue
            common = [a for a in chain.operator(name).over if a in target.over]
            found += [Dependence(target.out, name, a) for a in common]
    return tuple(found)
