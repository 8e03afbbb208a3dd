"""A plan's loops as Triton runs them: written out iteration by iteration, pipelined, or neither.

A loop over an axis of which a buffer keeps several tiles is written out, since registers cannot be
chosen by a variable, and so is one along a window; the innermost loop that is left and loads is the
one that is pipelined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mcfuser.chain import Chain, over_window
from mcfuser.lowering.uses import touched
from mcfuser.space.plan import Floats, Plan, Sizes
from mcfuser.space.statement import (
    Buffer,
    Compute,
    Illegal,
    Load,
    Loop,
    Statement,
    loops,
    statements,
)

OUTER = ("grid", "split")
"""Kinds of loops whose iterations go to blocks of their own."""


def kept(buffer: Buffer, several: Callable[[str], bool]) -> tuple[str, ...]:
    """The axes of which a buffer holds several tiles; `several` says which axes have more than one
    tile."""
    return tuple(a for d in buffer.dims if d.whole for a in d.index.axes if several(a))


def written_out(
    chain: Chain, loop: Loop, buffers: Mapping[str, Buffer], several: Callable[[str], bool]
) -> bool:
    """The loop is written out. It must be where its variable chooses among tiles in registers, for
    registers cannot be indexed by a variable; a walk along a window is, unless it has parts, so
    that its loads do not wait for each other."""
    inside = [s for s, _ in statements(loop.body)]
    names = {name for s in inside for name in touched(s)}
    if any(loop.axis in kept(buffers[name], several) for name in names):
        return True
    computed = [s.operator for s in inside if isinstance(s, Compute) and loop.kind == "serial"]
    return any(loop.axis in o.over and over_window(chain, o) for o in computed)


def lowered_body(plan: Plan) -> tuple[Statement, ...]:
    """The statements of a plan, in which the loops that are written out are marked `unrolled`."""
    buffers, body = plan.placed
    named = {b.name: b for b in buffers}
    return _marked(plan.program.chain, body, named, lambda a: a not in plan.dead)


def _marked(
    chain: Chain,
    body: Sequence[Statement],
    buffers: Mapping[str, Buffer],
    several: Callable[[str], bool],
) -> tuple[Statement, ...]:
    marked: list[Statement] = []
    for s in body:
        if isinstance(s, Loop):
            out = s.kind == "serial" and written_out(chain, s, buffers, several)
            kind = "unrolled" if out else s.kind
            s = replace(s, kind=kind, body=_marked(chain, s.body, buffers, several))
        marked.append(s)
    return tuple(marked)


def block_body(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """What a block of the grid runs: the statements inside the grid's loops. Raises Illegal where
    the loops of the grid do not enclose every statement."""
    _, body = inside_grid(body)
    if any(loop.kind == "grid" for loop in loops(body)):
        raise Illegal("a statement stands outside the loops that form the grid")
    return tuple(body)


def inside_grid(body: Sequence[Statement]) -> tuple[tuple[str, ...], Sequence[Statement]]:
    """The axes of the grid's loops that enclose every statement, outermost first, and what is
    inside them."""
    axes = list[str]()
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "grid":
        axes.append(body[0].axis)
        body = body[0].body
    return tuple(axes), body


def around_loop(
    body: Sequence[Statement],
) -> tuple[tuple[Statement, ...], Loop, tuple[Statement, ...]] | None:
    """The statements before the one loop that a block of the grid runs, the loop, and the
    statements after it; None where the block has no loop, or more than one. Raises Illegal as
    `block_body` does."""
    inside = block_body(body)
    at = [i for i, s in enumerate(inside) if isinstance(s, Loop)]
    loop = inside[at[0]] if len(at) == 1 else None
    return (inside[: at[0]], loop, inside[at[0] + 1 :]) if isinstance(loop, Loop) else None


def inner(outer: Sequence[Loop]) -> tuple[Loop, ...]:
    """Of the loops around a statement, those that a block runs: neither grid loops nor parts."""
    return tuple(x for x in outer if x.kind not in OUTER)


def innermost(outer: Sequence[Loop]) -> Loop | None:
    """The innermost serial loop around a statement, which is the one that may be pipelined."""
    return next((x for x in reversed(outer) if x.kind == "serial"), None)


def pipelined(loop: Loop | None) -> bool:
    """Triton pipelines the loop: it loads, and is an innermost one."""
    if loop is None or loop.kind != "serial":
        return False
    inside = list(statements(loop.body))
    nested = any(x.kind == "serial" for _, outer in inside for x in outer)
    return not nested and any(isinstance(s, Load) for s, _ in inside)


def serial(body: Sequence[Statement], outer: tuple[Loop, ...] = ()) -> Iterator[
    tuple[Loop, tuple[Loop, ...]]
]:  # fmt: skip
    """Every serial loop that a block runs, with the loops around it."""
    for s in body:
        if isinstance(s, Loop):
            if s.kind == "serial":
                yield s, outer
            yield from serial(s.body, (*outer, s))


def peak(body: Sequence[Statement], sizes: Sizes) -> Floats:
    """Iterations of the longest block over those of the average one, where bounds make them
    unequal."""
    ratio = np.ones(len(sizes.one))
    for loop, _ in serial(body):
        taken_shares = sizes.taken_shares(loop)
        ratio = np.maximum(
            ratio, taken_shares.max(axis=1) / np.maximum(taken_shares.mean(axis=1), 1e-9)
        )
    return ratio
