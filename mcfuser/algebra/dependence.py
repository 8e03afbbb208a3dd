"""Which reductions need which others over an axis that both reduce."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.chain import Chain, Operator
from mcfuser.expr import Expr, Index, Read, at, reads, rewrite


@dataclass(frozen=True, slots=True)
class Dependence:
    """`target` reads, directly or through maps, `moving`, and both reduce over `axis`."""

    target: str
    moving: str
    axis: str


def through_maps(chain: Chain, operator: Operator) -> Expr:
    """The operator's body with every map that it reads written out, down to other reductions."""

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor in chain.inputs:
            return node
        source = chain.operator(node.tensor)
        if source.reduce != "none":
            return node
        moved = at(source.body, dict(zip(source.axes, node.indices, strict=True)))
        return rewrite(moved, leaf)

    return rewrite(operator.body, leaf)


def dependences(chain: Chain) -> tuple[Dependence, ...]:
    """Every pair of reductions over a common axis of which one reads the other's result."""
    found: list[Dependence] = []
    for target in chain.operators:
        if target.reduce == "none":
            continue
        for name in dict.fromkeys(r.tensor for r in reads(through_maps(chain, target))):
            if name in chain.inputs:
                continue
            common = [a for a in chain.operator(name).over if a in target.over]
            found += [Dependence(target.out, name, a) for a in common]
    return tuple(found)
