"""Rolling updates: keep a running value and repair it whenever the other reduction moves.

For a target `t = reduce_j g(r, c_j)` whose r still moves, h(t, r, r') must make what was
accumulated with r into what r' would have given: `h(g(r, c), r, r') = g(r', c)`. Where g can be
solved for one of the c, `h(t, r, r') = g(r', c(r, t))` (Neptune, Theorem 4.3); h must also commute
with the reducer (Theorem 4.2). Over floating-point numbers that is not enough: what was accumulated
must neither have overflowed nor have been rounded away while r was far from its last value
(algebra.stability). Nothing here knows what softmax is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcfuser.algebra.dependence import Dependence, dependences, through_maps
from mcfuser.algebra.quotient import unguarded
from mcfuser.algebra.stability import RepairStep, instability, step_of
from mcfuser.algebra.symbols import from_sympy, to_sympy
from mcfuser.chain import LOWEST, Chain, Reducer
from mcfuser.errors import ChainError
from mcfuser.expr import (
    DISCRETE,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    conjuncts,
    read,
    reads,
    rewrite,
    text,
    walk,
)

OLD = "_old"
"""The suffix of the tensor that holds a moving reduction's value before its last step."""


LONGEST = 40
"""The most operations of what is inverted: a softmax has 5, a normalized sum of squares 23, and
SymPy may take minutes for a hundred."""


@dataclass(frozen=True, slots=True)
class Roll:
    """How a target is repaired. `h` reads the target, the moving value, and its old value."""

    target: str
    moving: str
    axis: str
    g: str
    inverse: str
    h: Expr


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target cannot be repaired, in one sentence."""

    target: str
    moving: str
    axis: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Solution:
    g: str
    inverse: str
    h: Expr | None
    reason: str = ""
    step: RepairStep | None = None


def rolls(chain: Chain) -> tuple[Roll | Refusal, ...]:
    """For every dependence between reductions of the chain: its repair, or the reason for none."""
    return tuple(_roll(chain, d) for d in dependences(chain))


def _roll(chain: Chain, d: Dependence) -> Roll | Refusal:
    target, moving = chain.operator(d.target), chain.operator(d.moving)
    body = unguarded(through_maps(chain, target.body))
    if target.domain is not None and _reads(through_maps(chain, target.domain), d.moving):
        return _refuse(d, f"the domain of '{d.target}' depends on '{d.moving}'")
    for name in (d.target, d.moving):
        if (dtype := chain.tensor(name).dtype) in DISCRETE:
            return _refuse(d, f"'{name}' is of {dtype}, in which nothing can be repaired")
    own = [r for r in reads(body) if r.tensor == d.moving]
    moved = any(i.plain not in target.axes for i in own[0].indices)
    if moved or len(own) > 1:
        return _refuse(d, f"'{d.target}' reads '{d.moving}' at more than its own position")
    within = set(conjuncts(moving.domain)) <= set(conjuncts(target.domain))
    if moving.reduce == "max" and not within:
        return _refuse(
            d, f"'{d.target}' accumulates outside the domain of '{d.moving}', before that has begun"
        )
    skeleton, _ = _abstract(body, d.moving)
    if (count := sum(1 for _ in walk(skeleton))) > LONGEST:
        return _refuse(
            d, f"'{d.target}' has {count} operations around '{d.moving}'; at most {LONGEST} are "
            "inverted"
        )  # fmt: skip
    solution = _solve(text(skeleton), target.reduce)
    if solution.h is None:
        return _refuse(d, solution.reason)
    if (why := instability(chain, target, body, moving, solution.step)) is not None:
        return _refuse(d, why)
    names: Mapping[str, Expr] = {
        "t": read(d.target, *target.axes),
        "r": Read(d.moving + OLD, own[0].indices),
        "s": Read(d.moving, own[0].indices),
    }
    h = rewrite(solution.h, lambda n: names[n.axis] if isinstance(n, Index) else n)
    assert moving.reduce != "none"
    return Roll(d.target, d.moving, d.axis, solution.g, solution.inverse, h)


def _refuse(d: Dependence, reason: str) -> Refusal:
    sentence = (
        f"operator '{d.target}' cannot share the loop over axis '{d.axis}' with "
        f"operator '{d.moving}': {reason}"
    )
    return Refusal(d.target, d.moving, d.axis, sentence)


def _reads(e: Expr, tensor: str) -> bool:
    return any(r.tensor == tensor for r in reads(e))


def _abstract(e: Expr, moving: str) -> tuple[Expr, dict[Expr, str]]:
    """The body with r for the moving read and c0, c1, .. for each maximal subterm free of it."""
    symbols: dict[Expr, str] = {}

    def go(node: Expr) -> Expr:
        if isinstance(node, Read) and node.tensor == moving:
            return Index("r")
        free = not _reads(node, moving)
        if isinstance(node, Const):
            return node
        if free and any(isinstance(n, (Read, Index)) for n in walk(node)):
            return Index(symbols.setdefault(node, f"c{len(symbols)}"))
        if isinstance(node, Cast):
            return go(node.arg) if node.dtype not in DISCRETE else Cast(go(node.arg), node.dtype)
        assert isinstance(node, Call)
        return Call(node.op, tuple(go(a) for a in node.args))

    return go(e), symbols


@lru_cache(maxsize=1024)
def _solve(g_text: str, reduce: Reducer) -> _Solution:
    """The repair for g as text in r and c0, c1, ..; t is the old result, s the new r."""
    import sympy as sp

    from mcfuser.expr import parse

    symbols = {n: sp.Symbol(n, real=True) for n in ("r", "s", "t", "x", "y")}
    g_expr = parse(g_text)
    cs = sorted({n.axis for n in walk(g_expr) if isinstance(n, Index)} - {"r"})
    symbols |= {c: sp.Symbol(c, real=True) for c in cs}
    try:
        g = to_sympy(g_expr, symbols)
    except ChainError as error:
        return _Solution(g_text, "", None, str(error))
    r, s, t = symbols["r"], symbols["s"], symbols["t"]
    for c in reversed(cs):
        inverse = _invert(g, symbols[c], t)
        if inverse is None:
            continue
        h = sp.powsimp(sp.simplify(g.subs(r, s).subs(symbols[c], inverse)))
        if h.free_symbols & {symbols[o] for o in cs}:
            continue
        if not _commutes(h, t, symbols["x"], symbols["y"], reduce):
            continue
        step = step_of(h, t, r, s)
        return _Solution(g_text, f"{c} = {inverse}", _kept(from_sympy(h), reduce, step), step=step)
    return _Solution(
        g_text, "", None,
        f"no h with h(g(r, c), r, r') = g(r', c) commutes with {reduce} for g = {g_text}",
    )  # fmt: skip


def _kept(h: Expr, reduce: Reducer, step: RepairStep | None) -> Expr:
    """h, which keeps the reducer's identity: what has nothing in it yet. The lowest number times a
    factor would be a value among others, and a factor that grows from r = lowest is infinite, of
    which zero times is no number. A factor that only shrinks leaves zero what it is."""
    if reduce == "max":
        return Call("select", (Call("le", (Index("t"), Const(LOWEST))), Index("t"), h))
    if step is not None and step.kind == "exponential" and step.rate > 0:
        return h
    return Call("select", (Call("eq", (Index("t"), Const(0.0))), Const(0.0), h))


def _invert(g: Any, c: Any, t: Any) -> Any | None:
    """c from g(c) = t, undoing one operation at a time; None where c stands twice or is stuck."""
    import sympy as sp

    value = t
    while g != c:
        inside = [a for a in g.args if c in a.free_symbols]
        if len(inside) != 1:
            return None
        if g.is_Add:
            value = value - (g - inside[0])
        elif g.is_Mul:
            value = value / (g / inside[0])
        elif isinstance(g, sp.exp):
            value = sp.log(value)
        elif isinstance(g, sp.log):
            value = sp.exp(value)
        elif g.is_Pow and g.args[1] == -1:
            value = 1 / value
        elif g.is_Pow and c in g.args[1].free_symbols:
            value = sp.log(value) / sp.log(g.args[0])
        else:
            return None
        g = inside[0]
    return value


def _commutes(h: Any, t: Any, x: Any, y: Any, reduce: Reducer) -> bool:
    """h(x + y) = h(x) + h(y) for a sum; for a max, h only shifts or scales up (Theorem 4.2)."""
    import sympy as sp

    if reduce == "sum":
        return bool(sp.simplify(h.subs(t, x + y) - h.subs(t, x) - h.subs(t, y)) == 0)
    slope = sp.simplify(sp.diff(h, t))
    return t not in slope.free_symbols and bool(slope.is_nonnegative)
