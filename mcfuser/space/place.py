"""Placement: a tiling expression becomes the tree of statements (MCFuser section III-B).

Every statement stands at the outermost loop that its dependences allow; a loop of one trip is
dead and orders nothing. Reductions that need each other share a loop where a repair is known;
otherwise the later one walks its own loop, and what it reads is kept whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mcfuser.algebra.roll import OLD, Refusal, Roll
from mcfuser.chain import Chain, Operator, batch_axes, sources
from mcfuser.expr import Affine, Expr, Read, axis, rewrite
from mcfuser.space.expression import Expression
from mcfuser.space.schedule import (
    LOWEST,
    Buffer,
    Compute,
    Dim,
    Init,
    Keep,
    Load,
    Loop,
    Repair,
    Statement,
    Store,
)


@dataclass(eq=False)
class _Nest:
    """A loop under construction; the root has no axis."""

    axis: str | None
    items: list[_Nest | Statement] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """A chain with what is known of it before any expression: rewritten sums, and repairs."""

    chain: Chain
    rolls: tuple[Roll | Refusal, ...]

    @cached_property
    def batch(self) -> tuple[str, ...]:
        return tuple(a for a in batch_axes(self.chain) if self.chain.size(a) > 1)

    @cached_property
    def repairs(self) -> Mapping[tuple[str, str, str], Roll]:
        return {(r.target, r.moving, r.axis): r for r in self.rolls if isinstance(r, Roll)}

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """The operators that each operator needs, directly or not."""
        found: dict[str, frozenset[str]] = {}
        for o in self.chain.operators:
            direct = {r.tensor for r in sources(o)} - set(self.chain.inputs)
            found[o.out] = frozenset(direct).union(*(found[d] for d in direct))
        return found

    def rolled(self, o: Operator, loop: str) -> bool:
        """`o` may run inside `loop` while reductions over it that `o` needs still move."""
        needs = [p for p in self.ancestors[o.out] if loop in self.chain.operator(p).over]
        if not needs:
            return True
        if loop not in o.related:
            return False
        if loop in o.over:
            moving = {m for t, m, a in self.repairs if t == o.out and a == loop}
            refused = any(
                isinstance(r, Refusal) and r.target == o.out and r.axis == loop for r in self.rolls
            )
            return bool(moving) and not refused
        readers = [c for c in self.chain.operators if any(r.tensor == o.out for r in sources(c))]
        escapes = o.out in self.chain.outputs or o.reduce != "none"
        return not escapes and all(self.rolled(c, loop) for c in readers)


@dataclass
class _Site:
    """Where an operator stands: its loops, the nests that are these loops, its compute."""

    loops: tuple[str, ...]
    nests: tuple[_Nest, ...]  # nests[i] is inside i loops; nests[0] is the root
    compute: Compute


def place(
    program: Program, expression: Expression, dead: Collection[str] = (), move: bool = True
) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
    """Buffers and statements of a chain under a tiling expression with some loops dead.

    `move=False` leaves loads and stores beside their compute, as the paper's section III-B starts.
    """
    placing = _Placing(program, expression, frozenset(dead), move)
    for operator in program.chain.operators:
        placing.add(operator)
    return placing.buffers(), _freeze(placing.root, set(program.batch) | set(expression.grid))


def _freeze(nest: _Nest, grid: Collection[str]) -> tuple[Statement, ...]:
    return tuple(
        Loop(i.axis or "", "grid" if i.axis in grid else "serial", _freeze(i, grid))
        if isinstance(i, _Nest)
        else i
        for i in nest.items
    )


class _Placing:
    """The tree while operators are added to it, in the order in which they can run."""

    def __init__(
        self, program: Program, expression: Expression, dead: frozenset[str], move: bool
    ) -> None:
        self.program, self.expression, self.dead, self.move = program, expression, dead, move
        self.chain = program.chain
        self.root = _Nest(None)
        self.sites: dict[str, _Site] = {}
        self.loaded: dict[str, tuple[Read, _Nest, str | None]] = {}
        self.kept: list[str] = []

    # --- loops

    def grid(self) -> tuple[str, ...]:
        alive = tuple(a for a in self.expression.grid if a not in self.dead)
        return self.program.batch + alive

    def loops(self, o: Operator) -> tuple[str, ...]:
        """The loops around an operator: up to its rightmost related one (section III-B)."""
        path = [a for a in self.expression.path(o.related) if a not in self.dead]
        path = path[len([a for a in self.expression.grid if a not in self.dead]) :]
        while path and path[-1] not in o.related:
            path.pop()
        finished = {a for p in self.program.ancestors[o.out] for a in self.chain.operator(p).over}
        inside = False
        kept: list[str] = []
        for a in path:
            if a in o.related or (a not in finished and not inside):
                kept.append(a)
            inside = inside or a in o.over
        return self.grid() + tuple(kept)

    def nests(self, o: Operator, loops: Sequence[str]) -> tuple[_Nest, ...]:
        """The nests for these loops, shared with earlier operators where dependences allow."""
        node, found = self.root, [self.root]
        joining = True
        for a in loops:
            last = self._joinable(node, o, a) if joining else None
            if last is None:
                joining = False
                last = _Nest(a)
                node.items.append(last)
            node = last
            found.append(node)
        return tuple(found)

    def _joinable(self, node: _Nest, o: Operator, loop: str) -> _Nest | None:
        needs = self.program.ancestors[o.out]
        for item in reversed(node.items):
            if isinstance(item, _Nest) and item.axis == loop:
                moving = any(
                    loop in self.chain.operator(p).over and item in self.sites[p].nests
                    for p in needs
                )
                return item if not moving or self.program.rolled(o, loop) else None
            if needs & _computed(item):
                return None
        return None

    # --- statements

    def add(self, o: Operator) -> None:
        loops = self.loops(o)
        nests = self.nests(o, loops)
        names = {r: self._load(o, r, loops, nests) for r in sources(o)}

        def leaf(node: Expr) -> Expr:
            return Read(names[node], node.indices) if isinstance(node, Read) else node

        body = rewrite(o.body, leaf)
        domain = rewrite(o.domain, leaf) if o.domain is not None else None
        compute = Compute(o, o.out, body, domain)
        nests[-1].items.append(compute)
        self.sites[o.out] = _Site(loops, nests, compute)
        if o.reduce != "none":
            value = 0.0 if o.reduce == "sum" else LOWEST
            self._before(o.out, self._first_over(o, loops), Init(o.out, value))
        for (target, moving, a), roll in self.program.repairs.items():
            if target == o.out:
                self._repair(roll, moving, a)
        if o.out in self.chain.outputs:
            self._store(o, loops)

    def _first_over(self, o: Operator, loops: Sequence[str]) -> int:
        """How many loops surround the whole reduction."""
        return next((i for i, a in enumerate(loops) if a in o.over), len(loops))

    def _before(self, out: str, depth: int, statement: Statement) -> None:
        nest, anchor = self._anchor(out, depth)
        nest.items.insert(nest.items.index(anchor), statement)

    def _after(self, out: str, depth: int, statement: Statement) -> None:
        nest, anchor = self._anchor(out, depth)
        position = nest.items.index(anchor) + 1
        while position < len(nest.items) and isinstance(nest.items[position], Repair):
            position += 1
        nest.items.insert(position, statement)

    def _anchor(self, out: str, depth: int) -> tuple[_Nest, _Nest | Statement]:
        """The nest inside `depth` loops of an operator, and what of it holds the compute."""
        site = self.sites[out]
        if depth < len(site.loops):
            return site.nests[depth], site.nests[depth + 1]
        return site.nests[depth], site.compute

    def _load(self, o: Operator, r: Read, loops: Sequence[str], nests: Sequence[_Nest]) -> str:
        if r.tensor not in self.chain.inputs:
            return r.tensor
        used = {a for i in r.indices for a in i.axes}
        depth = max((i + 1 for i, a in enumerate(loops) if a in used), default=0)
        depth = max(depth, len(self.grid())) if self.move else len(loops)
        for name, (known, nest, _) in self.loaded.items():
            if known == r and nest in nests[: depth + 1]:
                return name
        name = r.tensor
        while name in self.loaded:
            stem, _, number = name.partition("__")
            name = f"{stem}__{int(number or 1) + 1}"
        self.loaded[name] = (r, nests[depth], loops[depth - 1] if depth else None)
        items = nests[depth].items
        inner = depth < len(loops) and nests[depth + 1] in items
        position = items.index(nests[depth + 1]) if inner else len(items)
        items.insert(position, Load(name, r))
        return name

    def _repair(self, roll: Roll, moving: str, a: str) -> None:
        site, target = self.sites[moving], self.sites[roll.target]
        if a not in site.loops or a not in target.loops:
            return  # the loop is dead: nothing moves
        if site.nests[site.loops.index(a) + 1] not in target.nests:
            return  # loops of their own: the target reads what is final
        old = moving + OLD
        if old not in self.kept:
            self.kept.append(old)
            self._keep(site, site.nests[site.loops.index(a) + 1], moving)
        repair = Repair(roll.target, old, moving, roll.h)
        if repair not in site.nests[-1].items:
            self._after(moving, len(site.loops), repair)

    def _keep(self, site: _Site, turn: _Nest, moving: str) -> None:
        """The old value is kept before anything of this turn changes it: the reduction's own step,
        or its repair where it follows another one."""
        nest, anchor = next(
            ((nest, item) for nest, item in _items(turn)
             if isinstance(item, Repair) and item.buffer == moving),
            (site.nests[-1], site.compute),
        )  # fmt: skip
        nest.items.insert(nest.items.index(anchor), Keep(moving + OLD, moving))

    def _store(self, o: Operator, loops: Sequence[str]) -> None:
        depth = self._first_over(o, loops)
        while self.move and depth > len(self.grid()) and loops[depth - 1] not in o.axes:
            depth -= 1
        if not self.move:
            depth = len(loops)
        self._after(o.out, depth, Store(o.out, o.out))

    # --- buffers

    def buffers(self) -> tuple[Buffer, ...]:
        found: list[Buffer] = []
        for name, (r, _, owner) in self.loaded.items():
            dtype = self.chain.tensor(r.tensor).dtype
            dims = tuple(Dim(i) for i in r.indices)
            found.append(Buffer(name, r.tensor, dims, dtype, "shared", owner))
        for o in self.chain.operators:
            found.append(self._computed(o))
            if o.out + OLD in self.kept:
                found.append(replace(found[-1], name=o.out + OLD))
        return tuple(found)

    def _computed(self, o: Operator) -> Buffer:
        site = self.sites[o.out]
        depth = self._first_over(o, site.loops)
        dims = tuple(Dim(axis(a), self._whole(o, a)) for a in o.axes)
        dtype = self.chain.tensor(o.out).dtype
        held = "float32" if dtype in ("float16", "bfloat16") else dtype
        owner = site.loops[depth - 1] if depth else None
        return Buffer(o.out, o.out, dims, held, "register", owner)

    def _whole(self, o: Operator, a: str) -> bool:
        """The tile must keep every position of the axis: its loop ends before a reader starts,
        or turns inside a loop that it accumulates over (MCFuser Fig. 6b)."""
        site = self.sites[o.out]
        if a not in site.loops:
            return False
        at = site.loops.index(a)
        if at >= self._first_over(o, site.loops):
            return True
        readers = [c for c in self.chain.operators if any(r.tensor == o.out for r in sources(c))]
        return any(site.nests[at + 1] not in self.sites[c.out].nests for c in readers)


def _items(nest: _Nest) -> Iterator[tuple[_Nest, Statement]]:
    """Every statement below a nest, in order, with the nest that holds it."""
    for item in nest.items:
        if isinstance(item, _Nest):
            yield from _items(item)
        else:
            yield nest, item


def _computed(item: _Nest | Statement) -> set[str]:
    if isinstance(item, _Nest):
        return set().union(*(_computed(i) for i in item.items))
    return {item.operator.out} if isinstance(item, Compute) else set()


def plain_index(index: Affine) -> str:
    """The axis of a computed tile's dimension."""
    name = index.plain
    assert name is not None
    return name
