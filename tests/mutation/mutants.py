"""Mutants of source files, by Cosmic Ray's operators, and a sample of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from parso.tree import BaseNode, NodeOrLeaf

LEFT_OUT = (
    "RemoveDecorator", "ExceptionReplacer", "VariableReplacer", "VariableInserter",
    *(f"ReplaceComparisonOperator_{op}_Is" for op in ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")),
)  # fmt: skip
"""How the names of operators start whose mutants fail at once, or mean the same of most values."""
ORDERS = ("_Lt", "_LtE", "_Gt", "_GtE")
"""How the names of operators end that make an order of a comparison: of words there is none."""


@dataclass(frozen=True)
class Mutant:
    """A source file with one change: the line, as it was and as it is, and the whole new text."""

    path: Path
    line: int
    before: str
    after: str
    text: str


@dataclass(frozen=True)
class Place:
    """Where an operator may change a file: its occurrence, and the line and column."""

    operator: str
    occurrence: int
    line: int
    column: int


def sampled(folders: Sequence[Path], seed: int, count: int) -> list[Mutant]:
    """So many mutants of the files below some folders, the same for the same seed. Every place of
    every file is as likely as any other, whatever the number of its mutants."""
    rng = Random(seed)
    files = sorted(p for folder in folders for p in folder.rglob("*.py"))
    grouped = {p: by_place(p.read_text()) for p in files}
    every = [(p, at) for p, places in grouped.items() for at in places]
    rng.shuffle(every)
    found = []
    for path, at in every[: max(count, 0)]:
        found.append(_mutant(path, rng.choice(grouped[path][at])))
    return sorted(found, key=lambda m: (str(m.path), m.line))


def by_place(text: str) -> dict[tuple[int, int], list[Place]]:
    """What may be changed at each line and column of a source text."""
    found: dict[tuple[int, int], list[Place]] = {}
    without = set(_meaningless(text))
    for place in places(text):
        if (place.line, place.column) not in without:
            found.setdefault((place.line, place.column), []).append(place)
    return found


def places(text: str) -> Iterator[Place]:
    nodes = list(ast_nodes(get_ast(text)))
    words = set(_of_words(nodes))
    for name in operator_names():
        if name.rpartition("/")[2].startswith(LEFT_OUT) or get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        starts = (s for n in nodes for s, _ in operator.mutation_positions(n))
        for occurrence, (line, column) in enumerate(starts):
            if not (name.endswith(ORDERS) and (line, column) in words):
                yield Place(name, occurrence, line, column)


def _of_words(nodes: list[NodeOrLeaf]) -> Iterator[tuple[int, int]]:
    """The position of every operator that compares something with a string: `reduce == "sum"`."""
    for node in nodes:
        if isinstance(node, BaseNode) and node.type == "comparison":
            left, operators, right = node.children[::2], node.children[1::2], node.children[2::2]
            for one, operator, other in zip(left, operators, right, strict=False):
                if "string" in (one.type, other.type):
                    yield operator.start_pos


def _meaningless(text: str) -> Iterator[tuple[int, int]]:
    """Every position of an annotation, which nothing evaluates, of a decorator, and of the value of
    `strict` in a call of `zip`: an assertion that the lengths agree, which they do."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        hidden: list[ast.expr | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            hidden += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            hidden += node.decorator_list
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            hidden.append(node.annotation)
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            hidden.append(node.value)
        for e in hidden:
            if e is not None:
                for line in range(e.lineno, (e.end_lineno or e.lineno) + 1):
                    first = e.col_offset if line == e.lineno else 0
                    last = e.end_col_offset if line == e.end_lineno else len(lines[line - 1])
                    yield from ((line, column) for column in range(first, last or 0))


def _mutant(path: Path, place: Place) -> Mutant:
    before = path.read_text()
    after = mutate_code(before, get_operator(place.operator)(), place.occurrence)
    assert after is not None and after != before
    old, new = before.splitlines(), after.splitlines()
    at = next(i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y)
    return Mutant(path, at + 1, old[at].strip(), new[at].strip(), after)
