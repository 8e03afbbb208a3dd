"""Exponentials of what is below its maximum, to base two.

`exp(x - max[n] x)` is `exp2(y - max[n] y)` with y = x * log2(e): a processor's exponential is one
to base two, so the factor is paid anyway, and where x is itself a multiple, `x = c * z`, the two
factors are one: `exp2(z * c' - r)` is a multiplication and a subtraction in one instruction, and
`max[n] z * c'` takes the factor once a row. Exact over the reals; in floating point the maximum and
what is subtracted from are the same rounded numbers, as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mcfuser.algebra.dependence import through_maps
from mcfuser.algebra.linear import added, linear
from mcfuser.algebra.quotient import parts
from mcfuser.chain import Chain, Operator
from mcfuser.expr import DISCRETE, Call, Cast, Const, Expr, Read, read, reads, replaced, walk

LOG2E = math.log2(math.e)
NEAR_LOWEST = 1e37
"""Numbers beyond this are masks, not scores."""
_LEAST = 1e-3
"""The least factor of the lowest number that leaves an exponential nothing else."""


def base_two(chain: Chain) -> Chain:
    """The chain whose maxima that only serve such exponentials are taken to base two.

    Whatever else reads such a maximum reads it back to base e; one that the chain gives away, or
    holds in half precision, stays.
    """
    for o in chain.operators:
        if o.reduce == "max" and o.out not in chain.outputs:
            chain = _respelt(chain, o)
            argument = _argument(chain, o)
            if argument is not None and chain.tensor(o.out).dtype == "float32":
                return base_two(_moved(chain, o, argument))
    return chain


def _joined(o: Operator) -> tuple[Expr, ...]:
    """What a maximum is taken of; it may join something that does not vary (merge_into_maxima)."""
    return o.body.args if isinstance(o.body, Call) and o.body.op == "max" else (o.body,)


def _respelt(chain: Chain, o: Operator) -> Chain:
    """The chain in which every exponential of x less the maximum of x is written so:
    `exp(-(r - x))` and `exp(1.0 * (x - r))` are `exp(x - r)`."""
    own = read(o.out, *o.axes)
    for x in _joined(o):
        wanted = Call("sub", (x, own))
        form = linear(wanted)
        spellings = {
            e for r in chain.readers(o.out) for e in walk(r.body)
            if isinstance(e, Call) and e.op == "exp" and not added(linear(e.args[0]), form, -1.0)
        }  # fmt: skip
        for e in spellings - {Call("exp", (wanted,))}:
            operators = [
                replace(r, body=replaced(r.body, e, Call("exp", (wanted,))))
                for r in chain.operators
            ]
            chain = replace(chain, operators=tuple(operators))
    return chain


def _argument(chain: Chain, o: Operator) -> Expr | None:
    """What `o` is the maximum of, where some exponential is of the same less that maximum."""
    own = read(o.out, *o.axes)
    for x in _joined(o):
        wanted = Call("exp", (Call("sub", (x, own)),))
        used = any(e == wanted for r in chain.operators for e in walk(r.body))
        used = used and all(_smooth(chain, r, own, wanted) for r in chain.operators)
        alone = o.domain is None or all(
            _only_in(saturated(r.body, own), own, wanted) for r in chain.readers(o.out)
        )  # of an empty row others read the lowest number, not a multiple of it
        if used and alone and unbiased(chain, x, o.over):
            return x
    return None


def saturated(e: Expr, own: Read) -> Expr:
    """The expression with a number for every exponential of a maximum plus something else: of an
    empty row it is infinite or zero, whatever the lowest number is multiplied with."""
    if isinstance(e, Cast):
        return Cast(saturated(e.arg, own), e.dtype)
    if not isinstance(e, Call):
        return e
    if e.op == "exp" and abs(linear(e.args[0]).get(own, 0.0)) >= _LEAST:
        return Const(1.0)
    return Call(e.op, tuple(saturated(a, own) for a in e.args))


def _smooth(chain: Chain, r: Operator, own: Read, wanted: Expr) -> bool:
    """The operator has the same value, but for rounding, where the maximum is rounded otherwise: it
    compares it with nothing, directly or through maps, and makes no whole number of it."""
    steps = ("eq", "ne", "lt", "le", "floor", "and", "or", "not", "round", "shift_right", "bit_and")
    wanted = through_maps(chain, wanted)

    def holds(e: Expr, below: bool) -> bool:
        if e == wanted and not below:
            return True
        if isinstance(e, Read):
            return not below or e.tensor != own.tensor
        if isinstance(e, Cast):
            return holds(e.arg, below or e.dtype in DISCRETE)
        if not isinstance(e, Call):
            return True
        if (quotient := parts(e)) is not None:  # it is near 0 where its numerator is
            return all(holds(a, below) for a in quotient)
        if e.op == "select":
            return holds(e.args[0], True) and all(holds(a, below) for a in e.args[1:])
        return all(holds(a, below or e.op in steps) for a in e.args)

    body = through_maps(chain, r.body)
    domain = through_maps(chain, r.domain) if r.domain is not None else None
    stored = chain.tensor(r.out).dtype in DISCRETE
    return holds(body, stored) and (domain is None or holds(domain, True))


def unbiased(chain: Chain, x: Expr, over: Sequence[str]) -> bool:
    """No x can be the lowest number or near it, below which there is no room: it is not written
    there, no input is added, nor the maximum of a row that may be empty, and no input that varies
    along these axes is in it at all. A mask may hold that number, and a row of nothing else is not
    empty: its weights are all equal."""
    whole = through_maps(chain, x)
    if any(isinstance(e, Const) and NEAR_LOWEST < abs(e.value) < math.inf for e in walk(whole)):
        return False
    inputs = [r for r in reads(whole) if r.tensor in chain.inputs]
    varies = any(set(over) & set(i.axes) for r in inputs for i in r.indices)
    return not varies and not _adds_input(chain, whole)


def infinite(chain: Chain, x: Expr) -> bool:
    """Infinity is written in x."""
    every = walk(through_maps(chain, x))
    return any(isinstance(e, Const) and math.isinf(e.value) for e in every)


def _adds_input(chain: Chain, e: Expr) -> bool:
    """The value may be an input's, or an empty row's maximum, or such a value plus something."""
    if isinstance(e, Read):
        if e.tensor in chain.inputs:
            return True
        o = chain.operator(e.tensor)
        return o.reduce == "max" and o.domain is not None
    if isinstance(e, Cast):
        return _adds_input(chain, e.arg)
    if not isinstance(e, Call):
        return False
    if e.op in ("mul", "div"):
        rest = _split(e)[1]
        return rest is not e and _adds_input(chain, rest)
    values = e.args[1:] if e.op == "select" else e.args
    sums = e.op in ("add", "sub", "neg", "max", "min", "select")
    return sums and any(_adds_input(chain, a) for a in values)


def _moved(chain: Chain, o: Operator, x: Expr) -> Chain:
    own = read(o.out, *o.axes)
    wanted = Call("exp", (Call("sub", (x, own)),))
    chain, y = _multiple(chain, o, x, wanted)
    found = Call("exp2", (Call("sub", (y, own)),))

    def changed(e: Expr) -> Expr:
        if e == wanted:
            return found
        if isinstance(e, Read) and e.tensor == o.out:
            return Call("mul", (e, Const(1 / LOG2E)))
        if isinstance(e, Cast):
            return Cast(changed(e.arg), e.dtype)
        return Call(e.op, tuple(changed(a) for a in e.args)) if isinstance(e, Call) else e

    def maximum(e: Expr) -> Expr:
        if e == x:
            return y
        if isinstance(e, Call) and e.op == "max":
            return Call("max", tuple(maximum(a) for a in e.args))
        return Call("mul", (e, Const(LOG2E)))

    operators = []
    for r in chain.operators:
        domain = changed(r.domain) if r.domain is not None else None
        body = maximum(r.body) if r.out == o.out else changed(r.body)
        operators.append(replace(r, body=body, domain=domain))
    return _without(replace(chain, operators=tuple(operators)), x)


def _multiple(chain: Chain, o: Operator, x: Expr, wanted: Expr) -> tuple[Chain, Expr]:
    """x * log2(e) as one product with a number: a factor that x has already joins it. Where x is
    read from a map for this alone, the map loses the factor, or is no longer read. An input alone
    is no such x (`unbiased`)."""
    factor, rest = _split(x)
    if not isinstance(rest, Read):
        return chain, Call("mul", (rest, Const(factor * LOG2E)))
    source = chain.operator(rest.tensor)
    alone = all(
        r.out == o.out or _only_in(r.body, rest, wanted) for r in chain.readers(rest.tensor)
    )
    kept = source.out in chain.outputs or source.domain is not None or source.reduce != "none"
    if kept or not alone or rest != read(source.out, *source.axes):
        return chain, Call("mul", (rest, Const(factor * LOG2E)))
    more, inner = _split(source.body)
    y = Const(factor * more * LOG2E)
    if isinstance(inner, Read):
        return chain, Call("mul", (inner, y))
    operators = tuple(replace(r, body=inner) if r is source else r for r in chain.operators)
    return replace(chain, operators=operators), Call("mul", (rest, y))


def _split(e: Expr) -> tuple[float, Expr]:
    """A positive number times the rest of an expression."""
    if isinstance(e, Call) and e.op in ("mul", "div") and isinstance(e.args[1], Const):
        c = float(e.args[1].value)
        if c > 0:
            inner, rest = _split(e.args[0])
            return inner * (c if e.op == "mul" else 1 / c), rest
    if isinstance(e, Call) and e.op == "mul" and isinstance(e.args[0], Const):
        return _split(Call("mul", e.args[::-1])) if e.args[0].value > 0 else (1.0, e)
    return 1.0, e


def _only_in(e: Expr, x: Read, wanted: Expr) -> bool:
    """Every read of x's tensor is in such an exponential."""
    return all(r.tensor != x.tensor for r in reads(replaced(e, wanted, Const(1.0))))


def _without(chain: Chain, x: Expr) -> Chain:
    """The chain without the map that x was read from, where nobody reads it now."""
    if not isinstance(x, Read) or x.tensor in chain.inputs or x.tensor in chain.outputs:
        return chain
    if chain.readers(x.tensor):
        return chain
    return replace(
        chain,
        operators=tuple(o for o in chain.operators if o.out != x.tensor),
        tensors=tuple(t for t in chain.tensors if t.name != x.tensor),
    )
