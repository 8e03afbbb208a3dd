"""Finalists are checked on other inputs before one of them is kept."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from mcfuser.backend import Kernel
from mcfuser.chain import gemm
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.request import Measured
from mcfuser.process.child import NO_TIME
from mcfuser.tune.finalists import confirmed
from tests.support.workers import StandIn

CHAIN = gemm(1, 32, 32, 16, 16)
FIRST, FINE = Measured(5e-6, 1e-7), Measured(1e-6, 1e-7)


class Rounds(StandIn):
    """Answers for kernels "a" and "b": with varied inputs, and interleaved."""

    def __init__(self, varied: Measured, together: Measured) -> None:
        super().__init__(device_named("cpu"))
        self.answers = {True: varied, False: together}
        self.seeds: set[int] = set()

    def measure(self, chain, programs, seed, varied=False, **more) -> list[Measured]:
        self.seeds.add(seed)
        return [FINE if p[0].source == "a" else self.answers[varied] for p in programs]


def kept(varied: Measured, together: Measured) -> tuple[dict[str, float | None], Counter[str]]:
    failed, worker = Counter[str](), Rounds(varied, together)
    some = {n: (Kernel(CHAIN, n, {}), FIRST) for n in "ab"}
    found = confirmed(worker, CHAIN, some, 7, math.inf, failed)
    assert worker.seeds == {8}, "inputs that the search did not see"
    return {n: m.seconds for n, m in found}, failed


@pytest.mark.parametrize("where", ["varied", "together"])
def test_one_that_is_wrong_in_either_round_is_dropped_and_counted(where: str) -> None:
    wrong = Measured(None, None, "its error is 1")
    times, failed = kept(**{"varied": FINE, "together": FINE} | {where: wrong})
    assert times == {"a": 1e-6} and failed == {"as a finalist, its error is 1": 1}


def test_the_first_measurement_stands_where_no_time_is_left() -> None:
    late = Measured(None, None, NO_TIME)
    times, failed = kept(FINE, late)
    assert times == {"a": 5e-6, "b": 5e-6} and not failed
