"""Placement: a tiling expression becomes the tree of statements (MCFuser section III-B).

Every statement is placed in the outermost loop that its dependences allow. A loop of one trip is
dead, and imposes no order. A reduction that needs another one over the same axis shares its loop
where a repair is known; otherwise it gets a loop of its own, and buffers that it reads keep all of
their tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from mcfuser.algebra.roll import OLD, Roll
from mcfuser.chain import Operator, lowest, sources
from mcfuser.expr import Expr, Read, axis, rewrite
from mcfuser.space.bounds import bounded
from mcfuser.space.ends import marked
from mcfuser.space.expression import Expression
from mcfuser.space.nest import SPLIT, Nest, Site, computed, freeze, items
from mcfuser.space.nesting import Nesting, nesting
from mcfuser.space.program import Program
from mcfuser.space.statement import (
    Buffer,
    Combine,
    Compute,
    Dim,
    Illegal,
    Init,
    Load,
    Repair,
    SaveOld,
    Statement,
    Store,
    StorePartial,
)


def place(
    program: Program,
    expression: Expression,
    dead: Collection[str] = (),
    move: bool = True,
    split: str | None = None,
) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
    """Buffers and statements of a chain under a tiling expression with some loops dead.

    With `move=False` loads and stores stay in the loop of their computation, which is the start of
    the paper's section III-B. `split` names the loop whose iterations are divided into parts that
    are combined afterwards. Raises Illegal where the results of parts cannot be combined.
    """
    return finished(program, *drawn(program, nesting(program, expression, dead, split), move))


def finished(
    program: Program, buffers: tuple[Buffer, ...], body: tuple[Statement, ...]
) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
    """What was `drawn`, with the bounds of loops, and with masks past the ends of axes."""
    return buffers, marked(program, buffers, bounded(body))


def drawn(
    program: Program, loops: Nesting, move: bool = True
) -> tuple[tuple[Buffer, ...], tuple[Statement, ...]]:
    """Buffers and statements of a chain whose operators have these loops around them, as `place`
    gives them, but without what follows from them (`finished`): two are equal where these are.

    Raises Illegal where the results of parts cannot be combined.
    """
    unshared = frozenset[str]()
    while True:
        placing = _Placing(program, loops, move, unshared)
        try:
            for operator, its in zip(program.chain.operators, loops.loops, strict=True):
                placing.add(operator, its)
        except _Stale as stale:
            unshared |= {stale.map}
            continue
        break
    placing.combine()
    return placing.buffers(), freeze(placing.root, set(loops.grid))


class _Stale(Exception):
    """A map was placed in a loop in which a reduction that it reads still moves, and is read
    outside of that loop: it must not share that loop (`_Placing.unshared`)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.map = name


class _Placing:
    """The tree while operators are added to it, in the order in which they can run."""

    def __init__(
        self, program: Program, loops: Nesting, move: bool, unshared: frozenset[str]
    ) -> None:
        self.unshared = unshared
        self.moved: dict[str, list[Nest]] = {}
        self.program, self.grid, self.move = program, loops.grid, move
        self.split = loops.split
        self.chain = program.chain
        self.root = Nest(None)
        self.sites: dict[str, Site] = {}
        self.loaded: dict[str, tuple[Read, Nest]] = {}
        self.kept: list[str] = []

    # --- loops

    def block(self, loops: Sequence[str]) -> int:
        """How many loops make the block in which a statement runs: those of the grid, and parts."""
        grid = len(self.grid)
        return grid + any(a.endswith(SPLIT) for a in loops[grid : grid + 1])

    def nests(self, o: Operator, loops: Sequence[str]) -> tuple[Nest, ...]:
        """The nests for these loops, shared with earlier operators where dependences allow."""
        node, path = self.root, [self.root]
        for a in loops:
            last = self._joinable(node, o, a)
            if last is None:
                last = Nest(a)
                node.items.append(last)
            node = last
            path.append(node)
        return tuple(path)

    def _joinable(self, node: Nest, o: Operator, loop: str) -> Nest | None:
        needs = self.program.ancestors[o.out]
        for item in reversed(node.items):
            if isinstance(item, Nest) and item.axis == loop:
                moving = [
                    p for p in needs
                    if loop in self.chain.operator(p).over and item in self.sites[p].nests
                ]  # fmt: skip
                if moving and (o.out in self.unshared or not self.program.rolled(o, loop)):
                    return None
                if not all(self._lasts(o, p) for p in moving):
                    return None
                if moving and o.reduce == "none":
                    self.moved.setdefault(o.out, []).append(item)
                return item
            if needs & computed(item):
                return None
        return None

    def _lasts(self, o: Operator, moving: str) -> bool:
        """The moving reduction is not reset inside a loop over which a reduction that needs it
        accumulates: a repair relates successive values of one run, not values before a reset."""
        if o.reduce == "none":
            return all(self._lasts(c, moving) for c in self.chain.readers(o.out))
        if not set(o.over) & set(self.chain.operator(moving).over):
            return True
        start = self._first_over(self.chain.operator(moving), self.sites[moving].loops)
        around = set(self.sites[moving].loops[:start])
        return not around & set(o.over)

    # --- statements

    def add(self, o: Operator, loops: tuple[str, ...]) -> None:
        nests = self.nests(o, loops)
        for r in sources(o):
            if any(n not in nests for n in self.moved.get(r.tensor, ())):
                raise _Stale(r.tensor)
        names = {r: self._load(o, r, loops, nests) for r in sources(o)}

        def leaf(node: Expr) -> Expr:
            return Read(names[node], node.indices) if isinstance(node, Read) else node

        body = rewrite(o.body, leaf)
        inside = o.domain if o.out not in self.program.unmasked else None
        domain = rewrite(inside, leaf) if inside is not None else None
        compute = Compute(o, o.out, body, domain)
        nests[-1].items.append(compute)
        self.sites[o.out] = Site(loops, nests, compute)
        if o.reduce != "none":
            value = 0.0 if o.reduce == "sum" else lowest(self.chain.tensor(o.out).dtype)
            self._before(o.out, self._first_over(o, loops), Init(o.out, value))
        for (target, moving, a), roll in self.program.repairs.items():
            if target == o.out:
                self._repair(roll, moving, a)
        if o.out in self.chain.outputs and not (self.split in o.over and self.split in loops):
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

    def _anchor(self, out: str, depth: int) -> tuple[Nest, Nest | Statement]:
        """The nest inside `depth` loops of an operator, and the item of it that holds the
        compute."""
        site = self.sites[out]
        if depth < len(site.loops):
            return site.nests[depth], site.nests[depth + 1]
        return site.nests[depth], site.compute

    def _load(self, o: Operator, r: Read, loops: Sequence[str], nests: Sequence[Nest]) -> str:
        if r.tensor not in self.chain.inputs:
            return r.tensor
        used = {a for i in r.indices for a in i.axes}
        depth = max((i + 1 for i, a in enumerate(loops) if a in used), default=0)
        depth = max(depth, self.block(loops)) if self.move else len(loops)
        inner = nests[depth + 1] if depth < len(loops) else None
        for name, (known, nest) in self.loaded.items():
            if known == r and nest in nests[self.block(loops) :]:  # parts have tiles of their own
                at = nests.index(nest)
                self._earlier(nest, Load(name, r), nests[at + 1] if at + 1 < len(nests) else None)
                return name
        name = r.tensor
        while name in self.loaded:
            stem, _, number = name.partition("__")
            name = f"{stem}__{int(number or 1) + 1}"
        self.loaded[name] = (r, nests[depth])
        items = nests[depth].items
        items.insert(items.index(inner) if inner is not None else len(items), Load(name, r))
        return name

    def _earlier(self, nest: Nest, load: Load, user: Nest | None) -> None:
        """Moves a load in front of a nest that needs its tile: an operator may join a loop that
        comes before the one that the tile was loaded for."""
        items = nest.items
        if user is not None and items.index(load) > items.index(user):
            items.remove(load)
            items.insert(items.index(user), load)

    def _repair(self, roll: Roll, moving: str, a: str) -> None:
        site, target = self.sites[moving], self.sites[roll.target]
        if a not in site.loops or a not in target.loops:
            return  # the loop is dead: nothing moves
        if site.nests[site.loops.index(a) + 1] not in target.nests:
            return  # loops of their own: the target reads what is final
        old = moving + OLD
        if old not in self.kept:
            self.kept.append(old)
            self._save_old(site, site.nests[site.loops.index(a) + 1], moving)
        repair = Repair(roll.target, old, moving, roll.h)
        if repair not in site.nests[-1].items:
            self._after(moving, len(site.loops), repair)

    def _save_old(self, site: Site, iteration: Nest, moving: str) -> None:
        """Saves a moving reduction's value before this iteration changes it: before the reduction's
        own step, or before its repair where it has one."""
        nest, anchor = next(
            ((nest, item) for nest, item in items(iteration)
             if isinstance(item, Repair) and item.buffer == moving),
            (site.nests[-1], site.compute),
        )  # fmt: skip
        nest.items.insert(nest.items.index(anchor), SaveOld(moving + OLD, moving))

    def _store(self, o: Operator, loops: Sequence[str]) -> None:
        depth = self._first_over(o, loops)
        while self.move and depth > self.block(loops) and loops[depth - 1] not in o.axes:
            depth -= 1
        if not self.move:
            depth = len(loops)
        self._after(o.out, depth, Store(o.out, o.out))

    # --- the global phase of a split

    def combine(self) -> None:
        """Lets every part end by storing its partial results, and combines these after the
        parts."""
        if self.split is None:
            return
        depth = len(self.grid)
        inside = [s for s in self.sites.values() if self.split + SPLIT in s.loops]
        nests = {id(s.nests[depth + 1]): s.nests for s in inside}
        if len(nests) != 1:
            raise Illegal(f"there is not exactly one loop over '{self.split}'")
        ((_, path),) = nests.items()
        block, parts = path[depth], path[depth + 1]
        at = block.items.index(parts)
        if any(not isinstance(i, (Load, Init)) for i in block.items[:at]):
            raise Illegal(f"something is computed before the loop over '{self.split}'")
        after: list[Nest | Statement] = []
        for s in inside:
            o = s.compute.operator
            if not self.program.rolled(o, self.split):
                raise Illegal(f"'{o.out}' needs what only all parts of '{self.split}' know")
            if self.split in o.over:
                parts.items.append(StorePartial(o.out))
                after.append(Combine(o, o.out, self._combining(o)))
                after += [Store(o.out, o.out)] if o.out in self.chain.outputs else []
            elif self._leaves(o, parts):
                raise Illegal(f"'{o.out}' is needed outside the parts of '{self.split}'")
        block.items[at + 1 : at + 1] = after

    def _combining(self, o: Operator) -> tuple[Repair, ...]:
        """The repairs of a part's value, from the moving reductions of its part to the combined
        ones."""
        return tuple(
            Repair(o.out, moving + OLD, moving, roll.h)
            for (target, moving, a), roll in self.program.repairs.items()
            if target == o.out and a == self.split
        )

    def _leaves(self, o: Operator, parts: Nest) -> bool:
        """The operator is read outside the parts, or is an output that every part would store."""
        read_by = self.chain.readers(o.out)
        escapes = any(parts not in self.sites[c.out].nests for c in read_by)
        return escapes or (o.out in self.chain.outputs and self.split not in o.axes)

    # --- buffers

    def buffers(self) -> tuple[Buffer, ...]:
        every: list[Buffer] = []
        for name, (r, _) in self.loaded.items():
            dtype = self.chain.tensor(r.tensor).dtype
            dims = tuple(Dim(i) for i in r.indices)
            every.append(Buffer(name, r.tensor, dims, dtype, "shared"))
        for o in self.chain.operators:
            every.append(self._computed(o))
            if o.out + OLD in self.kept:
                every.append(replace(every[-1], name=o.out + OLD))
        return tuple(every)

    def _computed(self, o: Operator) -> Buffer:
        dims = tuple(Dim(axis(a), self._whole(o, a)) for a in o.axes)
        dtype = self.chain.tensor(o.out).dtype
        held = "float32" if dtype in ("float16", "bfloat16") else dtype
        return Buffer(o.out, o.out, dims, held, "register")

    def _whole(self, o: Operator, a: str) -> bool:
        """The tile must keep every position of the axis: its loop ends before a reader starts,
        or iterations inside a loop that it accumulates over (MCFuser Fig. 6b)."""
        site = self.sites[o.out]
        if a not in site.loops:
            return False
        at = site.loops.index(a)
        if at >= self._first_over(o, site.loops):
            return True
        read_by = self.chain.readers(o.out)
        return any(site.nests[at + 1] not in self.sites[c.out].nests for c in read_by)
