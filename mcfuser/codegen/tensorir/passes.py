"""Passes over a tile that are no products: maps and reductions, vectorised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcfuser.chain import WHOLE, lowest
from mcfuser.codegen.tensorir.integer import plus, times
from mcfuser.codegen.tensorir.scalar import literal
from mcfuser.codegen.tensorir.window import across, reduce_windows, reduced, windowed
from mcfuser.codegen.tensorir.writer import PARTS, At, Writer
from mcfuser.expr import Call, Cast, Const, Expr, Index, Read, axis, read, reads, rewrite, walk
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Repair,
    Store,
    StorePartial,
    plain_index,
)

MANY = 24
"""Steps of an expression from which on two vectors of elements are computed at once."""
_STEPS: Mapping[str, int] = {"exp": 18, "exp2": 18, "tanh": 30, "erf": 36}
"""Those of functions that are polynomials (codegen.tensorir.scalar); the others are one."""


def tile_axes(w: Writer, buffer: str) -> tuple[str, ...]:
    """The axes of a computed tile."""
    return tuple(plain_index(d.index) for d in w.schedule.buffer(buffer).dims)


def fill(w: Writer, s: Init) -> None:
    """Sets a tile to one value, padding included; of a buffer of several tiles, the current one."""
    lanes, number = w.lowering.lanes, literal(s.value, w.held(s.buffer))
    counts, starts = [], []
    for dim in w.schedule.buffer(s.buffer).dims:
        a = plain_index(dim.index)
        iterating = dim.whole and a in w.loops
        counts.append(w.schedule.tile(a) if iterating else w.extent(dim))
        starts.append(w.start(a) if iterating else "0")
    if not counts:
        w.put(f"{s.buffer}_tile[0] = {number}")
        return
    with w.nest([(f"i{i}", str(n)) for i, n in enumerate(counts[:-1])]) as at:
        where = [plus(start, a) for start, a in zip(starts, at, strict=False)]
        if counts[-1] % lanes == 0:
            with w.nest([("j0", str(counts[-1] // lanes))]) as (j0,), w.vector("j", lanes):
                last = plus(starts[-1], plus(times(j0, lanes), "j"))
                w.put(f"{s.buffer}_tile[{w.place(s.buffer, [*where, last])}] = {number}")
        else:
            with w.block(f"for j in range({counts[-1]}):"):
                place = w.place(s.buffer, [*where, plus(starts[-1], "j")])
                w.put(f"{s.buffer}_tile[{place}] = {number}")


def assign(w: Writer, names: Sequence[str], body: Expr, target: str) -> None:
    """target[names] = body, over the positions inside the extents."""
    if target in w.direct:
        _pass(w, names, body, w.direct[target], output=True)
    else:
        _pass(w, names, body, target, output=False)


def store(w: Writer, s: Store) -> None:
    names = tile_axes(w, s.buffer)
    _pass(w, names, read(s.buffer, *names), s.tensor, output=True)


def store_partial(w: Writer, s: StorePartial) -> None:
    names = tile_axes(w, s.buffer)
    assign(w, names, read(s.buffer, *names), s.buffer + PARTS)


def combine(w: Writer, s: Combine) -> None:
    """Reduces the parts, one after the other, into a tile that starts at the identity."""
    names = tile_axes(w, s.buffer)
    repaired: Expr = read(s.buffer + PARTS, *names)
    for r in s.repairs:
        repaired = _repaired(r, repaired)
    largest = s.operator.reduce == "max"
    fill(w, Init(s.buffer, lowest(_dtype(w, s.operator.out)) if largest else 0.0))
    step = "max" if s.operator.reduce == "max" else "add"
    with w.block(f"for part in range({w.schedule.parts}):"):
        assign(w, names, Call(step, (read(s.buffer, *names), repaired)), s.buffer)


def _repaired(r: Repair, value: Expr) -> Expr:
    """h of a part's value and of the moving reduction as the same part stored it."""

    def leaf(node: Read | Index) -> Expr:
        if not isinstance(node, Read) or node.tensor == r.new:
            return node
        return value if node.tensor == r.buffer else Read(r.new + PARTS, node.indices)

    return rewrite(r.h, leaf)


def _dtype(w: Writer, tensor: str) -> str:
    return w.schedule.chain.tensor(tensor).dtype


def _pass(w: Writer, names: Sequence[str], body: Expr, target: str, output: bool) -> None:
    indices = tuple(axis(a) for a in names)
    with w.over(names[:-1]) as at:
        known = w.invariant(body, names[-1], at) if names else {}

        def write(last: At, lane: str) -> None:
            here = {**at, **last}
            value = w.scalar(here, known).typed(body)
            if output:
                text = value.stored(_dtype(w, target))
                w.put(f"{w.address(target, indices, here)} = {text}")
            else:
                text = value.stored(w.held(target))
                w.put(f"{w.element(Read(target, indices), here)} = {text}")

        if names:
            again = all(r.tensor != target for r in reads(body))
            w.lanes(names[-1], write, _at_once(body), again)
        else:
            write({}, "0")


def _at_once(body: Expr) -> int:
    """Vectors whose elements are computed together. Each step of an expression waits for the one
    before it: where there are many, two vectors keep a core busy. An epilogue of 110 steps over 128
    x 1536 took 0.58 ms, and 0.42 with two (an EPYC with AVX2, 2026-11-26)."""
    steps = sum(_STEPS.get(e.op, 1) for e in walk(body) if isinstance(e, Call))
    return 2 if steps >= MANY else 1


def reduction(w: Writer, s: Compute) -> None:
    """A sum or maximum of a tile into what was accumulated before."""
    dtype = _dtype(w, s.operator.out)
    identity = lowest(dtype) if s.operator.reduce == "max" else 0.0
    body = s.body if dtype not in WHOLE else Cast(s.body, dtype)
    if s.domain is not None:
        number = int(identity) if dtype in WHOLE else identity
        body = Call("select", (s.domain, body, Const(number)))
    if windowed(w, s):
        reduce_windows(w, s, body, identity)
    elif last := across(w, s):
        _across(w, s, body, identity, last)
    else:
        _along(w, s, body)


def _across(w: Writer, s: Compute, body: Expr, identity: float, last: str) -> None:
    """Lanes hold partial results along the reduced axis; they are folded in half at the end."""
    o, lanes = s.operator, w.lowering.lanes
    with w.over([*o.axes, *(a for a in o.over if a != last)]) as at:
        known = w.invariant(body, last, at)
        with w.vector("l", lanes):
            w.put(f"lane[l] = {literal(identity)}")

        def write(here: At, lane: str) -> None:
            value = w.scalar({**at, **here}, known).text(body)
            w.put(f"lane[{lane}] = {reduced(o.reduce, f'lane[{lane}]', value)}")

        w.lanes(last, write)
        half = lanes // 2
        while half > 1:
            with w.vector("l", half):
                w.put(f"lane[l] = {reduced(o.reduce, 'lane[l]', f'lane[l + {half}]')}")
            half //= 2
        place = w.element(read(s.buffer, *o.axes), at)
        folded = reduced(o.reduce, "lane[0]", "lane[1]")
        w.put(f"{place} = {reduced(o.reduce, place, folded)}")


def _along(w: Writer, s: Compute, body: Expr) -> None:
    """The reduced axes are the outer loops; lanes are separate results."""
    o = s.operator
    with w.over([*o.over, *o.axes[:-1]]) as at:
        known = w.invariant(body, o.axes[-1], at) if o.axes else {}

        def write(last: At, lane: str) -> None:
            here = {**at, **last}
            place = w.element(read(s.buffer, *o.axes), here)
            value = w.scalar(here, known).typed(body).to(w.held(s.buffer)).text
            w.put(f"{place} = {reduced(o.reduce, place, value)}")

        if o.axes:
            w.lanes(o.axes[-1], write)
        else:
            write({}, "0")
