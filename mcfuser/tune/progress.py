"""How far a compilation is: what it tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """A chain among the distinct chains of a model; `number` counts from 1."""

    number: int
    of: int
    name: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done, and how far it is.

    `stage` names it: "import", "measure", "compile", "build". Where candidates are searched,
    `total` are all of the search at hand, `done` those that were measured (or tried, where nothing
    can be measured), `compiled` those with a kernel, `failed` those that were not built, do not
    fit, or are wrong, and `best` are the seconds of the fastest one that is right. `chain` is the
    one that is searched for. `left` are the estimated seconds until the module is built. What is
    not known is None.
    """

    stage: str
    done: int = 0
    total: int = 0
    compiled: int = 0
    failed: int = 0
    best: float | None = None
    chain: ChainPlace | None = None
    left: float | None = None

    def __str__(self) -> str:
        """The stage and the chain's number, in words: "measure chain 2 of 5"."""
        if self.chain is None:
            return self.stage
        return f"{self.stage} chain {self.chain.number} of {self.chain.of}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        place = document["chain"]
        return cls(**{**document, "chain": ChainPlace(**place) if place is not None else None})


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the log of a compilation: what was decided, and what was left out and why."""

    words: str


Listener = Callable[[Progress | Note], None]
"""Is called with what a compilation tells. It may raise an exception, which ends the
compilation."""


def unheard(told: Progress | Note) -> None:
    """A listener that ignores what it is told."""
