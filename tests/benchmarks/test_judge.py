"""How models rank what was measured."""

from __future__ import annotations

from judge import judge, known
from landscape import read
from tests.support.paths import LANDSCAPES


def test_what_was_measured_is_ranked() -> None:
    """On landscapes that the fit has not seen."""
    names = ("G1", "G2", "G4", "S4", "S9", "G10", "L2", "L3", "P1", "P3", "W2", "W5", "W7")
    found = [known(read(LANDSCAPES / f"{n}.json")) for n in names]
    verdicts = {(v.landscape, v.model): v for v in judge(found)}
    for k in found:
        name = k.landscape.name
        mine = verdicts[name, "fitted to the others"]
        assert mine.pearson > 0.75 and mine.spearman > 0.75 and mine.top < 1.1, name
        assert mine.spearman > verdicts[name, "equation (2)"].spearman
