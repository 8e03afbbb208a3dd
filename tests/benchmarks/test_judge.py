"""How models rank what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from judge import judge, known, pearson, ranks
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


def test_ranks_and_correlation() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    a = np.array([1.0, 2.0, 3.0])
    assert pearson(a, 2 * a + 1) == pytest.approx(1)
    assert pearson(a, -a) == pytest.approx(-1)
    assert pearson(a, np.ones(3)) == 0
