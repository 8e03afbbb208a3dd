"""Merging into a maximum: `max(max[n] x[n], s)` becomes `max[n] max(x[n], s)`.

Here s does not vary along n. While the maximum of the first form moves, no repair of its readers
exists, since `max(r, s)` has no inverse in r; readers of the second form are repaired as those of
any softmax are. A learned sink joins the maximum of an attention in this way.
"""

from __future__ import annotations

from dataclasses import replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.chain import Chain, Operator
from mcfuser.expr import DISCRETE, Call, Cast, Expr, Read, read, reads, replaced


def merge_into_maxima(chain: Chain) -> Chain:
    """The chain in which a map `max(R, s)` of a maximum R is merged into the computation of R.

    A maximum is rewritten only where another reduction over the same axis reads it. Where the
    maximum has a domain, the reductions that read it must have the same domain: outside of it, and
    in rows where it is empty, `max(R, s)` is the map's value and not that of R.
    """
    for o in chain.operators:
        joined = _joined(chain, o)
        if joined is not None and (moved := _merged(chain, o, *joined)) is not None:
            return merge_into_maxima(moved)
    return chain


def _joined(chain: Chain, o: Operator) -> tuple[Operator, Expr] | None:
    """Where an operator is a map `max(R, s)`: the operator of the maximum R, and s, which reads
    inputs of the chain alone; None for any other operator."""
    body = _uncast(o.body)
    if o.reduce != "none" or o.domain is not None or not isinstance(body, Call) or body.op != "max":
        return None
    if chain.tensor(o.out).dtype in DISCRETE:
        return None
    for one, other in (body.args, body.args[::-1]):
        one = _uncast(through_maps(chain, one))
        if not isinstance(one, Read) or one.tensor in chain.inputs:
            continue
        source = chain.operator(one.tensor)
        plain = source.axes == o.axes and one == read(source.out, *source.axes)
        real = chain.tensor(source.out).dtype not in DISCRETE
        if (
            source.reduce == "max"
            and real
            and plain
            and all(r.tensor in chain.inputs for r in reads(other))
        ):
            return source, other
    return None


def _uncast(e: Expr) -> Expr:
    return _uncast(e.arg) if isinstance(e, Cast) and e.dtype not in DISCRETE else e


def _merged(chain: Chain, o: Operator, source: Operator, other: Expr) -> Chain | None:
    """The chain in which s (`other`) is part of the maximum, and the reductions that share its loop
    read the maximum where they read the map."""
    within = {r.out for r in chain.operators if _within(chain, r, source)}
    served = {r.out for r in chain.readers(o.out)} & within
    if not served:
        return None
    old, new = read(o.out, *o.axes), read(source.out, *source.axes)
    operators = []
    for x in chain.operators:
        if x is source:
            x = replace(x, body=Call("max", (x.body, other)))
        elif x.out in served:
            x = replace(x, body=replaced(x.body, old, new))
        operators.append(x)
    return replace(chain, operators=tuple(operators))


def _within(chain: Chain, o: Operator, source: Operator) -> bool:
    """The operator is a reduction over the maximum's axes and domain, or a map that only such
    reductions read."""
    if o.reduce != "none":
        return set(source.over) <= set(o.over) and o.domain == source.domain
    read_by = chain.readers(o.out)
    varies = set(source.over) <= set(o.axes)
    kept = o.out in chain.outputs or not read_by or not varies
    return not kept and all(_within(chain, r, source) for r in read_by)
