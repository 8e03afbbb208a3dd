"""Copies: a map that is another result and nothing else is not a step of its own."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.chain import Chain, Operator
from mcfuser.expr import Read, read, rename


def without_copies(chain: Chain) -> Chain:
    """The chain in which what reads a copy of a result reads the result."""
    for o in chain.operators:
        if o.reduce == "none" and o.domain is None and o.out not in chain.outputs:
            body = o.body
            same = isinstance(body, Read) and body == read(body.tensor, *o.axes)
            if not isinstance(body, Read) or not same or body.tensor in chain.inputs:
                continue
            if chain.tensor(body.tensor).dtype != chain.tensor(o.out).dtype:
                continue
            return without_copies(_reading(chain, o, body.tensor))
    return chain


def _reading(chain: Chain, copy: Operator, tensor: str) -> Chain:
    """The chain without a copy of a tensor."""
    names = {copy.out: tensor}
    operators = []
    for o in chain.operators:
        domain = rename(o.domain, names, {}) if o.domain is not None else None
        if o is not copy:
            operators.append(replace(o, body=rename(o.body, names, {}), domain=domain))
    tensors = tuple(t for t in chain.tensors if t.name != copy.out)
    return replace(chain, operators=tuple(operators), tensors=tensors)
