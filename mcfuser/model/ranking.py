"""How well predicted times rank measured ones."""

from __future__ import annotations

import numpy as np

from mcfuser.space.plan import Floats

FACTOR = 3.0
"""Ranks are compared among candidates within this factor of the best."""
TOP = 8
"""Candidates that a search measures first."""


def spearman(predicted: Floats, seconds: Floats) -> float:
    """The rank correlation of the candidates that are within FACTOR of the best measured one."""
    near = seconds <= FACTOR * seconds.min()
    return pearson(ranks(predicted[near]), ranks(seconds[near]))


def top(predicted: Floats, seconds: Floats, count: int = TOP) -> float:
    """The time of the best of the `count` candidates that are predicted fastest, over the best time
    measured."""
    order = np.argsort(predicted, kind="stable")
    return float(seconds[order[:count]].min() / seconds.min())


def pearson(a: Floats, b: Floats) -> float:
    """The correlation coefficient, 0 where one of them does not vary."""
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    result: Floats = (last - (counts + 1) / 2)[inverse]
    return result
