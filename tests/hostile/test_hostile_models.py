"""Hostile models are refused in a sentence; nothing that reads them dies, hangs or raises."""

from __future__ import annotations

from typing import Any

import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.inspection import inspect
from mcfuser.graph.read import read

from .kinds import KINDS, SECRET, UNROLLED, hidden
from .trial import Trial, What, tried

MUTANTS = 600
IMPORTED = 50  # of those that pass the inspection
HIDDEN = hidden()


def complaints(trials: list[Trial]) -> list[str]:
    """What is wrong with how the models ended."""
    found = [f"{t.number} {t.how}: {t.said}" for t in trials if t.how not in ("good", "refused")]
    for t in trials:
        if t.how == "refused" and (not t.said or "\n" in t.said or "Traceback" in t.said):
            found.append(f"{t.number}: {t.said!r} is no sentence")
    return found


def test_there_are_many_hiding_places() -> None:
    assert len(HIDDEN) > 150
    for place in (
        "graph/initializer", "graph/sparse_initializer/values", "graph/sparse_initializer/indices",
        "graph/node/attribute/sparse_tensor/values", "functions/node/attribute/g/initializer",
        "functions/attribute_proto/t", "training_info/algorithm/initializer",
        "graph/node/attribute/graphs/node/attribute/tensors",
    ):  # fmt: skip
        assert place in HIDDEN


@pytest.mark.parametrize("place", HIDDEN)
def test_data_in_other_files_is_refused_wherever_it_hides(place: str) -> None:
    for look in (lambda m: inspect(m, {"x": (2, 4)}), lambda m: read(m, {"MatMul", "If"})):
        with pytest.raises(ModelError, match=f"external file '{SECRET}'"):
            look(HIDDEN[place])


@pytest.mark.thorough
@pytest.mark.parametrize(("what", "kinds"), [("kinds", KINDS), ("unrolled", UNROLLED)])
def test_each_kind_is_refused_for_what_it_is(what: What, kinds: dict[str, Any]) -> None:
    trials = tried(what, range(len(kinds)), processes=1)
    assert complaints(trials) == []
    said = {name: t.said for name, t in zip(kinds, trials, strict=True)}
    assert {n: s for n, s in said.items() if kinds[n][1] not in s} == {}


@pytest.mark.thorough
def test_mutants_are_good_or_refused_and_what_passes_is_imported_or_refused() -> None:
    trials = tried("inspect", range(MUTANTS))
    assert complaints(trials) == []
    good = [t.number for t in trials if t.how == "good"]
    assert MUTANTS // 10 < len(good) < MUTANTS // 2  # they are neither all broken nor all harmless
    assert complaints(tried("load", good[:: len(good) // IMPORTED])) == []
