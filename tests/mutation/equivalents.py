"""Mutants that mean the same as the line that they change: equivalents.toml, which says why."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant

TABLE = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True)
class Equivalent:
    """A line of a module, as it is in the source without its indentation, what mutants make of it,
    and why nothing that a test may claim differs."""

    module: str
    line: str
    becomes: tuple[str, ...]
    why: str


def table(path: Path = TABLE) -> list[Equivalent]:
    entries = tomllib.loads(path.read_text())["equivalent"]
    return [Equivalent(e["module"], e["line"], tuple(e["becomes"]), e["why"]) for e in entries]


def means_the_same(mutant: Mutant, known: Sequence[Equivalent]) -> bool:
    module = mutant.path.with_suffix("").as_posix()
    return any(
        module.endswith(f"/mcfuser/{e.module}")
        and e.line == mutant.before
        and mutant.after in e.becomes
        for e in known
    )
