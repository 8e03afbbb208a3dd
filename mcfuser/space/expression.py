"""Tiling expressions: the tree of cross-tile loops, in the paper's notation.

`mhnk` is four nested loops; in `mn(k,h)` the loops k and h run one after the other inside n.
`mh.nk` marks with a point that m and h are bound to the grid (MCFuser, Rule 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice, pairwise, permutations

from mcfuser.chain import Chain, batch_axes, sources
from mcfuser.errors import ChainError
from mcfuser.expr import axes

_TOKEN = re.compile(r"[a-z][0-9]*|[(),.]")

FEW = 5
"""Loops of which all orders are in a space; of more there are too many."""
MOST = 30_000
"""Expressions of a chain: of more, to list them alone takes seconds, and a minute what follows. Two
pooled values, a mean and a product of NASNet's would have 632,322."""
LoopRows = tuple[tuple[str, ...], ...]
"""Loops in rows, of which each has those that are interchangeable."""


@dataclass(frozen=True, slots=True)
class Expression:
    """Nested loops, then parts that run one after the other; `bound` loops form the grid."""

    loops: tuple[str, ...]
    parts: tuple[Expression, ...] = ()
    bound: int = 0

    def __str__(self) -> str:
        grid, rest = "".join(self.loops[: self.bound]), "".join(self.loops[self.bound :])
        inner = f"({','.join(str(p) for p in self.parts)})" if self.parts else ""
        return f"{grid}.{rest}{inner}" if self.bound else f"{rest}{inner}"

    @property
    def grid(self) -> tuple[str, ...]:
        return self.loops[: self.bound]

    @property
    def axes(self) -> tuple[str, ...]:
        """Every loop, outermost first, parts from left to right."""
        return self.loops + tuple(a for p in self.parts for a in p.axes)

    @property
    def deep(self) -> bool:
        return not self.parts

    def path(self, related: Sequence[str]) -> tuple[str, ...]:
        """The loops from the root to the part in which an operator with these axes runs."""
        for part in self.parts:
            if any(a in related for a in part.axes):
                return self.loops + part.path(related)
        return self.loops


def parse(text: str) -> Expression:
    """Reads what `str` writes; raises ChainError where the text is not an expression."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text.replace(" ", "") or not tokens:
        raise ChainError(f"'{text}' is not a tiling expression; write mhnk, mn(k,h) or mh.nk")
    result, rest = _parse(tokens)
    if rest or len(set(result.axes)) != len(result.axes):
        raise ChainError(
            f"'{text}' is not a tiling expression: a loop twice, or brackets unmatched"
        )
    return result


def _parse(tokens: list[str]) -> tuple[Expression, list[str]]:
    loops: list[str] = []
    parts: list[Expression] = []
    bound = 0
    while tokens and tokens[0] not in ("(", ")", ","):
        token, *tokens = tokens
        if token == ".":
            bound = len(loops)
        else:
            loops.append(token)
    if tokens and tokens[0] == "(":
        while tokens and tokens[0] in ("(", ","):
            part, tokens = _parse(tokens[1:])
            parts.append(part)
        if not tokens or tokens[0] != ")":
            raise ChainError("a tiling expression has an unmatched bracket")
        tokens = tokens[1:]
    return Expression(tuple(loops), tuple(parts), bound), tokens


def loop_axes(chain: Chain) -> tuple[str, ...]:
    """The axes with a cross-tile loop: all that operators use but the batch axes, which only ever
    bind."""
    batch = set(batch_axes(chain))
    used = {a for o in chain.operators for a in o.related}
    return tuple(a.name for a in chain.axes if a.name in used and a.name not in batch)


def deep(chain: Chain) -> tuple[Expression, ...]:
    """Every order of all loops, one inside the other."""
    return tuple(Expression(order) for order in permutations(loop_axes(chain)))


def flat(chain: Chain) -> tuple[Expression, ...]:
    """Every expression with loops in sequence.

    Below a nest of loops, the operators fall into two or more consecutive groups. The loops that
    are left must be private to one group each, and each group must have one; a group's own
    expression is deep or flat again.

    Of more than FEW loops, interchangeable ones are in the order of the chain's axes. Raises
    ChainError where there are more than MOST expressions, deep ones among them.
    """
    loops = loop_axes(chain)
    found = _flat(tuple(o.related for o in chain.operators), loops, _alike(chain))
    if found is None:
        raise ChainError(
            f"the {len(loops)} loops of the chain can be nested in more than {MOST} ways; divide "
            "the chain into smaller ones"
        )
    return found


@lru_cache(maxsize=256)
def _flat(
    operators: tuple[tuple[str, ...], ...], loops: tuple[str, ...], alike: LoopRows
) -> tuple[Expression, ...] | None:
    """None where there are too many. Operators stand here for the axes that they use: nothing else
    of them matters."""
    every = tuple(islice(_tilings(operators, loops, alike), MOST + 1))
    return tuple(dict.fromkeys(e for e in every if e.parts)) if len(every) <= MOST else None


def tilings(chain: Chain) -> tuple[Expression, ...]:
    """Deep and flat tiling expressions (MCFuser section III-A): 24 + 2 for the GEMM chain.

    Of more than FEW loops, interchangeable ones are in the order of the chain's axes. Raises
    ChainError where there are more than MOST.
    """
    loops, parts = loop_axes(chain), flat(chain)
    nests = orders(loops, len(loops), _alike(chain))
    return tuple(Expression(order) for order in nests) + parts


def _alike(chain: Chain) -> LoopRows:
    return interchangeable(chain) if len(loop_axes(chain)) > FEW else ()


def orders(loops: Sequence[str], count: int, alike: LoopRows) -> Iterator[tuple[str, ...]]:
    """Orders of so many of some loops, each of which comes after those before it in its row of
    loops that are `alike`."""
    before = {a: set(row[:i]) for row in alike for i, a in enumerate(row)}

    def further(left: Sequence[str], count: int) -> Iterator[tuple[str, ...]]:
        if count == 0:
            yield ()
            return
        for first in left:
            if first not in before or before[first].isdisjoint(left):
                rest = [a for a in left if a != first]
                for others in further(rest, count - 1):
                    yield (first, *others)

    return further(loops, count)


def interchangeable(chain: Chain) -> LoopRows:
    """The loops of each kind of which there are several: those that the same operators keep, the
    same ones reduce, and the same reads have. The positions of a convolution's windows are such."""
    kinds: dict[object, list[str]] = {}
    for a in loop_axes(chain):
        kept = tuple(a in o.axes for o in chain.operators)
        reduced = tuple(a in o.over for o in chain.operators)
        indexed = tuple(a in axes(r) for o in chain.operators for r in sources(o))
        kinds.setdefault((kept, reduced, indexed), []).append(a)
    return tuple(tuple(row) for row in kinds.values() if len(row) > 1)


def _tilings(
    operators: Sequence[Sequence[str]], loops: Sequence[str], alike: LoopRows
) -> Iterator[Expression]:
    for order in orders(loops, len(loops), alike):
        yield Expression(order)
    for size in range(len(loops) - 1):
        for prefix in orders(loops, size, alike):
            rest = [a for a in loops if a not in prefix]
            for groups in _groupings(operators, rest):
                for parts in _combinations(groups, alike):
                    yield Expression(prefix, parts)


def _groupings(
    operators: Sequence[Sequence[str]], rest: Sequence[str]
) -> Iterator[tuple[tuple[Sequence[Sequence[str]], tuple[str, ...]], ...]]:
    """Consecutive groups with their private loops, where all of `rest` is private."""
    users = {a: [i for i, related in enumerate(operators) if a in related] for a in rest}
    if not all(users.values()):
        return
    ends = [(found[0], found[-1]) for found in users.values()]
    every = range(1, len(operators))  # no cut separates operators that share a loop of `rest`
    between = [cut for cut in every if not any(first < cut <= last for first, last in ends)]
    for count in range(2, min(len(rest), len(operators)) + 1):
        for cuts in combinations(between, count - 1):
            edges = tuple(pairwise((0, *cuts, len(operators))))
            private = [tuple(a for a in rest if i <= users[a][0] < j) for i, j in edges]
            if all(private):
                groups = [operators[i:j] for i, j in edges]
                yield tuple(zip(groups, private, strict=True))


def _combinations(
    groups: Sequence[tuple[Sequence[Sequence[str]], tuple[str, ...]]], alike: LoopRows
) -> Iterator[tuple[Expression, ...]]:
    if not groups:
        yield ()
        return
    (operators, loops), *others = groups
    for first in _tilings(operators, loops, alike):
        for rest in _combinations(others, alike):
            yield (first, *rest)


def rename(expression: Expression, names: Mapping[str, str]) -> Expression:
    """The same tree under other axis names."""
    return replace(
        expression,
        loops=tuple(names[a] for a in expression.loops),
        parts=tuple(rename(p, names) for p in expression.parts),
    )


def bindable(chain: Chain) -> frozenset[str]:
    """Loops that may become the grid: kept by every output and reduced by no operator."""
    outputs = [set(chain.operator(o).axes) for o in chain.outputs]
    reduced = {a for o in chain.operators for a in o.over}
    return frozenset(set.intersection(*outputs) - reduced)


def bind(chain: Chain, expression: Expression) -> Expression:
    """The expression with its spatial loops outermost and bound to the grid (Rule 1)."""
    spatial = bindable(chain)
    grid = tuple(a for a in expression.loops if a in spatial)
    rest = tuple(a for a in expression.loops if a not in spatial)
    return replace(expression, loops=grid + rest, bound=len(grid))
