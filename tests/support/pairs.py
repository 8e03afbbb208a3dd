"""Cases in which every two values of different parameters are together once at least.

A mistake shows where a parameter has some value, or where two of them meet; one that needs three is
rare. All combinations of four parameters with four values each are 256, these about 20.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Case = tuple[int, ...]
"""The number of each parameter's value."""
Pair = tuple[tuple[int, int], ...]
"""Two parameters, each with the number of its value."""


def paired(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Runs a test with such cases of its parameters, by their names."""
    cases = cover([len(v) for v in values.values()])
    rows = [tuple(v[i] for v, i in zip(values.values(), c, strict=True)) for c in cases]
    return pytest.mark.parametrize(tuple(values), rows)


def cover(counts: Sequence[int]) -> Iterator[Case]:
    """Such cases of parameters with so many values each: the next is ever the first one that has
    most of the pairs that are left."""
    every = [*product(*map(range, counts))]
    left = {pair for case in every for pair in pairs(case)}
    while left:
        case = max(every, key=lambda c: len(left.intersection(pairs(c))))
        left.difference_update(pairs(case))
        yield case


def pairs(case: Case) -> Iterator[Pair]:
    return combinations(enumerate(case), 2)
