"""Ranks, correlations, and what the first predicted cost."""

from __future__ import annotations

import numpy as np
import pytest

from mcfuser.model.ranking import pearson, ranks, spearman, top


def test_ranks_and_correlation() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    a = np.array([1.0, 2.0, 3.0])
    assert pearson(a, 2 * a + 1) == pytest.approx(1)
    assert pearson(a, -a) == pytest.approx(-1)
    assert pearson(a, np.ones(3)) == 0 and pearson(a[:1], a[:1]) == 0


def test_only_those_near_the_best_are_ranked() -> None:
    seconds = np.array([1.0, 2.0, 2.9, 3.1, 9.0])
    assert spearman(np.array([1.0, 20.0, 300.0, 2.0, 1.5]), seconds) == pytest.approx(1)
    assert spearman(np.array([3.0, 2.0, 1.0, 9.0, 9.0]), seconds) == pytest.approx(-1)


def test_the_best_of_the_first_is_over_the_best_of_all() -> None:
    seconds = np.array([4.0, 2.0, 1.0])
    assert top(np.array([1.0, 2.0, 3.0]), seconds, 1) == 4.0
    assert top(np.array([1.0, 2.0, 3.0]), seconds, 2) == 2.0
    assert top(np.array([1.0, 2.0, 3.0]), seconds) == 1.0
