"""Which reductions need which others over an axis that both reduce."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.chain import Chain
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Index, Read, at, reads, rewrite


@dataclass(frozen=True, slots=True)
class Dependence:
    """`target` reads, directly or through maps, `moving`, and both reduce over `axis`."""

    target: str
    moving: str
    axis: str


def through_maps(chain: Chain, e: Expr) -> Expr:
    """An expression with every map that it reads written out, down to reductions."""

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor in chain.inputs:
            return node
        if chain.operator(node.tensor).reduce != "none":
            return node
        return rewrite(written_out(chain, node), leaf)

    return rewrite(e, leaf)


def written_out(chain: Chain, r: Read) -> Expr:
    """What a map computes where it is read: zero outside its domain, whole or a condition where its
    tensor is."""
    source = chain.operator(r.tensor)
    body, dtype = source.body, chain.tensor(source.out).dtype
    if dtype in DISCRETE:
        body = Cast(body, dtype)
    if source.domain is not None:
        body = Call("select", (source.domain, body, Const(0 if dtype in DISCRETE else 0.0)))
    return at(body, dict(zip(source.axes, r.indices, strict=True)))


def dependences(chain: Chain) -> tuple[Dependence, ...]:
    """Every pair of reductions over a common axis of which one reads the other's result."""
    pairs: list[Dependence] = []
    for target in chain.operators:
        if target.reduce == "none":
            continue
        sources = [through_maps(chain, e) for e in (target.body, target.domain) if e is not None]
        for name in dict.fromkeys(r.tensor for e in sources for r in reads(e)):
            if name in chain.inputs:
                continue
            common = [a for a in chain.operator(name).over if a in target.over]
            pairs += [Dependence(target.out, name, a) for a in common]
    return tuple(pairs)
