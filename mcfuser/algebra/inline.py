"""Maps that are read off-centre are inlined into their readers, which compute them again.

A tile of a result holds the positions of its own axes. An element that an operator reads at `m +
1`, at `0`, or along another axis may belong to another tile, or to another block.
"""

from __future__ import annotations

from dataclasses import replace

from mcfuser.algebra.dependence import written_out
from mcfuser.chain import Chain, Operator, without_dead
from mcfuser.errors import ChainError
from mcfuser.expr import Expr, Index, Read, index_text, read, rewrite


def inline_maps(chain: Chain) -> Chain:
    """The chain in which every result is read at its own axes alone.

    A map that is read at other indices is written into the operator that reads it. Raises
    ChainError where a reduction is read so: only a reduction that is a kernel of its own leaves its
    result in memory, where any element can be read.
    """
    operators: list[Operator] = []
    for o in chain.operators:
        body = _in_place(chain, o, o.body)
        domain = _in_place(chain, o, o.domain) if o.domain is not None else None
        operators.append(o if (body, domain) == (o.body, o.domain)
                         else replace(o, body=body, domain=domain))  # fmt: skip
    if tuple(operators) == chain.operators:
        return chain
    return without_dead(replace(chain, operators=tuple(operators)))


def _in_place(chain: Chain, o: Operator, e: Expr) -> Expr:
    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor in chain.inputs:
            return node
        source = chain.operator(node.tensor)
        if node == read(source.out, *source.axes):
            return node
        if source.reduce != "none":
            where = ", ".join(index_text(i) for i in node.indices)
            raise ChainError(
                f"operator '{o.out}' reads '{source.out}' at [{where}], but a kernel has it only "
                f"at [{', '.join(source.axes)}]; '{source.out}' needs a kernel of its own"
            )
        return rewrite(written_out(chain, node), leaf)

    return rewrite(e, leaf)
