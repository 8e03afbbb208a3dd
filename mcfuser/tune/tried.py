"""The candidates that searches have measured: a search that was cut short goes on from them.

They are kept under the cache key of the search, so equal candidates make equal kernels. A kept
time ranks a candidate; the kernel that is chosen is built, checked and timed again
(mcfuser.tune.search).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from mcfuser.chain import Chain
from mcfuser.errors import InputError
from mcfuser.measure.request import Measured
from mcfuser.process.child import NO_TIME
from mcfuser.space.candidates import Candidate, Candidates, Estimate
from mcfuser.space.expression import parse, rename
from mcfuser.space.knobs import KnobValue

BATCH = 16
"""Candidates that are kept together."""
PATIENCE = 1.0
"""Seconds after which those that were measured are kept, however few they are."""
LONGEST = 300
"""Characters of a reason for which a candidate failed."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate that was measured, and the result.

    In `expression`, `tiles` and `split` the chain's axes are named a0, a1.. by their positions:
    chains of one key differ in names. `shifts` says whether its space has hoisted shifts. `seconds`
    are those of a call and `error` is relative; both are None where it `failed`. `predicted` are
    the seconds that the model expected of it then, None where they were not kept.
    """

    expression: str
    tiles: Mapping[str, int]
    split: str | None
    parts: int
    shifts: bool
    knobs: Mapping[str, KnobValue]
    seconds: float | None
    error: float | None
    failed: str | None = None
    predicted: float | None = None

    @property
    def candidate(self) -> tuple[object, ...]:
        """The candidate without its result: equal for equal candidates of a key."""
        return (
            self.expression, tuple(self.tiles.items()), self.split, self.parts, self.shifts,
            tuple(self.knobs.items()),
        )  # fmt: skip

    def named(self, axes: Sequence[str] | None) -> dict[str, Any]:
        """The candidate and its result as JSON, with the names that a chain gives to its `axes`; by
        their positions if those are None."""
        expression = parse(self.expression)
        own = {a: a for a in (*expression.axes, *self.tiles)}
        names = _positions(axes) if axes is not None else own
        return {
            "expression": str(rename(expression, names)),
            "tiles": {names[a]: n for a, n in self.tiles.items()},
            "split": names[self.split] if self.split is not None else None,
            "parts": self.parts,
            "shifts": self.shifts,
            "lowering": dict(self.knobs),
            "predicted": self.predicted,
            "measured": self.seconds,
            "error": self.error,
            "failed": self.failed,
        }


def schedule(
    chain: Chain,
    expression: str,
    tiles: Mapping[str, int],
    split: str | None,
    parts: int,
    shifts: bool,
    knobs: Mapping[str, KnobValue],
    seconds: float | None,
) -> Tried:
    """A candidate that is given with the names of a chain's axes. Raises KeyError or ChainError
    where it has other ones."""
    names = {a.name: f"a{i}" for i, a in enumerate(chain.axes)}
    return Tried(
        str(rename(parse(expression), names)),
        {names[a]: n for a, n in tiles.items()},
        names[split] if split is not None else None,
        parts, shifts, knobs, seconds, None,
    )  # fmt: skip


def _positions(axes: Sequence[str]) -> dict[str, str]:
    return {f"a{i}": name for i, name in enumerate(axes)}


def latest(tried: Iterable[Tried]) -> list[Tried]:
    """Each candidate once, with its last result, in the order in which they were first tried."""
    return list({t.candidate: t for t in tried}.values())


# --- as JSON


def to_json(tried: Sequence[Tried]) -> dict[str, Any]:
    """Candidates of one search as a JSON document, in which the names of knobs stand once."""
    knobs = list(tried[0].knobs) if tried else []
    rows = [
        [t.expression, dict(t.tiles), t.split, t.parts, t.shifts, [t.knobs[k] for k in knobs],
         t.seconds, t.error, t.failed, t.predicted]
        for t in tried
    ]  # fmt: skip
    return {"knobs": knobs, "tried": rows}


def from_json(document: Mapping[str, Any]) -> list[Tried]:
    """Raises KeyError, TypeError or ValueError where the document is of another form."""
    knobs = [str(k) for k in document["knobs"]]
    made = []
    for expression, tiles, split, parts, shifts, values, *result in document["tried"]:
        seconds, error, failed, *more = result
        (predicted,) = more or (None,)  # kept since it is shown beside the measured time
        if not isinstance(expression, str) or not all(type(n) is int for n in tiles.values()):
            raise TypeError("its expression or tiles are of another kind")
        if not all(type(v) in (int, float) for v in (seconds, error, predicted) if v is not None):
            raise TypeError("its time or error is no number")
        knob_values = dict(zip(knobs, values, strict=True))
        one = Tried(expression, tiles, split, parts, shifts, knob_values, seconds, error, failed)
        made.append(replace(one, predicted=predicted))
    return made


# --- from and to the rows of a search


def tried(
    chain: Chain,
    candidates: Candidates,
    shifts: bool,
    results: Mapping[Candidate, Measured],
    estimate: Estimate,
) -> list[Tried]:
    """The candidates that were measured, with the seconds that are estimated of them, and without
    those whose results say nothing of them: no time was left, or the device could not be used."""
    telling = {c: r for c, r in results.items() if r.failed != NO_TIME and not r.unusable}
    rows = np.asarray(list(telling), np.int64).reshape(len(telling), candidates.rows.shape[1])
    predictions = candidates.estimates(rows, estimate).tolist()
    made = []
    for (candidate, result), predicted in zip(telling.items(), predictions, strict=True):
        plan, tiles = candidates.plan(candidate)
        knobs = asdict(candidates.settings(candidate))
        seconds, failed = _finite(result.seconds), result.failed
        one = schedule(
            chain, str(plan.expression), tiles, plan.split, plan.parts, shifts, knobs, seconds
        )
        why = failed[:LONGEST] if failed is not None else None
        error, expected = _finite(result.error), _finite(predicted)
        made.append(replace(one, error=error, failed=why, predicted=expected))
    return made


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def results_of(
    chain: Chain, candidates: Candidates, shifts: bool, tried: Iterable[Tried]
) -> dict[Candidate, Measured]:
    """The results of kept candidates by the rows of a search, in the order in which they were
    measured; without those that the search does not have."""
    names = _positions([a.name for a in chain.axes])
    families = {
        (str(p.expression), p.split, p.parts): at for (at, _), p in candidates.plans.items()
    }
    numbers = {tuple(asdict(s).items()): i for i, s in enumerate(candidates.table.settings)}
    same = [t for t in latest(tried) if t.shifts == shifts]
    legal = set(map(tuple, candidates.rows.tolist())) if same else set()
    found: dict[Candidate, Measured] = {}
    for t in same:
        try:
            expression = str(rename(parse(t.expression), names))
            split = names[t.split] if t.split is not None else None
            tiles = {names[a]: n for a, n in t.tiles.items()}
            family = families[expression, split, t.parts]
            number = numbers[tuple(t.knobs.items())]
            row = (family, *(tiles[a] for a in candidates.space.axes), number)
        except (KeyError, TypeError, InputError):  # of another space
            continue
        if row in legal and (t.seconds is not None or t.failed is not None):
            found[row] = Measured(t.seconds, t.error, t.failed)
    return found


@dataclass
class TriedLog:
    """Keeps candidates as they come in, some at a time: a process that is killed loses few."""

    keep: Callable[[Sequence[Tried]], None]
    waiting: list[Tried] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def add(self, more: Iterable[Tried]) -> None:
        self.waiting += more
        if len(self.waiting) >= BATCH or time.monotonic() - self.since >= PATIENCE:
            self.flush()

    def flush(self) -> None:
        """Keeps those that wait."""
        some, self.waiting, self.since = self.waiting, [], time.monotonic()
        if some:
            self.keep(some)
