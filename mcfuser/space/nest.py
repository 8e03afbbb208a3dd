"""The tree of loops while statements are placed in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from mcfuser.space.statement import Compute, Loop, Statement

SPLIT = "/"
"""The suffix of an axis that marks the loop over its parts, which encloses the loop over the
axis."""


@dataclass(eq=False)
class Nest:
    """A loop under construction; the root has no axis."""

    axis: str | None
    items: list[Nest | Statement] = field(default_factory=list)


@dataclass
class Site:
    """The place of an operator: its loops, the nests that are these loops, its compute."""

    loops: tuple[str, ...]
    nests: tuple[Nest, ...]  # nests[i] is inside i loops; nests[0] is the root
    compute: Compute


def freeze(nest: Nest, grid: Collection[str]) -> tuple[Statement, ...]:
    return tuple(_loop(i, grid) if isinstance(i, Nest) else i for i in nest.items)


def _loop(nest: Nest, grid: Collection[str]) -> Loop:
    name, body = nest.axis or "", freeze(nest, grid)
    if name.endswith(SPLIT):
        return Loop(name.removesuffix(SPLIT), "split", body)
    return Loop(name, "grid" if name in grid else "serial", body)


def items(nest: Nest) -> Iterator[tuple[Nest, Statement]]:
    """Every statement below a nest, in order, with the nest that holds it."""
    for item in nest.items:
        if isinstance(item, Nest):
            yield from items(item)
        else:
            yield nest, item


def computed(item: Nest | Statement) -> set[str]:
    if isinstance(item, Nest):
        return set().union(*(computed(i) for i in item.items))
    return {item.operator.out} if isinstance(item, Compute) else set()
