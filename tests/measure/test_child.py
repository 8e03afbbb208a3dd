"""The process that measures: what is announced is prepared, cases are kept, failures are told."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mcfuser.backend import Kernel
from mcfuser.chain import gemm
from mcfuser.measure import child
from mcfuser.measure.case import Case
from mcfuser.measure.request import Inputs, Measured, MeasureRequest, failure
from mcfuser.measure.runner import Bound
from mcfuser.process.child import WAITS, WORKS
from mcfuser.space.reference import logical

CHAIN = gemm(1, 16, 16, 8, 8)
INPUTS = Inputs(0, 1e-5, 1e9)
RIGHT, WRONG, CRASH = (Kernel(CHAIN, words, {}) for words in ("right", "wrong", "crash"))


@dataclass
class Told:
    """A runner that gives the reference's own results, a thousandth more, or an error."""

    resource: str = "test-child"
    builds: bool = False
    attended: list[int] = field(default_factory=list)

    def attend(self, case: Case) -> None:
        self.attended.append(case.seed)

    def build(self, program: Any) -> Any:
        if program[0].source == "broken":
            raise ValueError("first\nno such statement")
        return program

    def bind(self, built: Any, case: Case) -> Bound:
        def run() -> None:
            if built[0].source == "crash":
                raise RuntimeError("an illegal address")

        off = 1.001 if built[0].source == "wrong" else 1.0
        found = {n: (off * a).astype(np.float32) for n, a in case.made.expected.items()}
        return Bound(run, lambda: found)

    def timed(self, programs: Any, request: MeasureRequest) -> Any:
        rounds = [[1e-6 * (i + 1)] * 7 for i in range(len(programs))]
        return rounds, {"baseline": request.baseline}

    def failed(self, error: Exception) -> Measured:
        fatal = "illegal" in str(error)
        return replace(failure(f"the device refuses it: {error}"), fatal=fatal)


def answers(runner: Told, *requests: MeasureRequest) -> list[dict[str, Any]]:
    lines = b"".join(json.dumps(r.to_json()).encode() + b"\n" for r in requests)
    told = io.BytesIO()
    child.serve(runner, io.BytesIO(lines), told)
    return [json.loads(line) for line in told.getvalue().splitlines()]


def results(runner: Told, *requests: MeasureRequest) -> list[Measured]:
    found = answers(runner, *requests)
    return [Measured.from_json(a) for a in found if a not in (WAITS, WORKS)]


def test_a_program_is_checked_and_then_timed() -> None:
    right, wrong = results(Told(), MeasureRequest(CHAIN, INPUTS, ((RIGHT,), (WRONG,))))
    assert right.seconds == 1e-6 and right.error is not None and right.error < 1e-6
    assert right.conditions["in_turns"] == 1
    assert wrong.seconds is None and "error" in str(wrong.failed)


def test_a_program_that_does_not_compile_is_told_with_the_last_line() -> None:
    (told,) = results(
        Told(builds=True), MeasureRequest(CHAIN, INPUTS, ((Kernel(CHAIN, "broken", {}),),))
    )
    assert told.failed == "it does not compile: no such statement"


def test_programs_together_are_interleaved_with_the_baseline_that_is_right() -> None:
    request = MeasureRequest(
        CHAIN, INPUTS, ((WRONG,), (RIGHT,), (RIGHT,)), together=True, baseline=2
    )
    wrong, one, two = results(Told(), request)
    assert wrong.seconds is None
    assert (one.seconds, two.seconds) == (1e-6, 2e-6)
    assert one.conditions == {"baseline": 1, "in_turns": 2}
    baseline_is_wrong = replace(request, baseline=0)
    assert results(Told(), baseline_is_wrong)[1].conditions["baseline"] is None


def test_a_child_that_waits_for_the_device_says_so() -> None:
    found = answers(Told(), MeasureRequest(CHAIN, INPUTS, ((RIGHT,),)))
    assert found[:4] == [WAITS, WORKS, WAITS, WORKS]


def test_a_fault_ends_the_process_and_those_before_it_are_told(monkeypatch) -> None:
    ended = []
    monkeypatch.setattr(child.os, "_exit", ended.append)
    request = MeasureRequest(CHAIN, INPUTS, ((RIGHT,), (CRASH,), (RIGHT,)), together=True)
    first, fault = results(Told(), request)
    assert first.failed == "a program timed with it broke the device" and not first.fatal
    assert fault.failed == "the device refuses it: an illegal address" and fault.fatal
    assert ended == [1]


def test_what_is_announced_is_prepared_and_not_answered() -> None:
    runner = Told()
    ahead = [MeasureRequest(CHAIN, replace(INPUTS, seed=s), ahead=True) for s in (1, 2)]
    asked = [MeasureRequest(CHAIN, replace(INPUTS, seed=s), ((RIGHT,),)) for s in (2, 1, 2)]
    assert len(results(runner, *ahead, *asked)) == 3
    assert runner.attended == [2, 1, 2]


def test_the_oldest_case_gives_way() -> None:
    cases: dict[str, Any] = {}
    requests = [MeasureRequest(CHAIN, replace(INPUTS, seed=s)) for s in range(5)]
    known = [child._known(r, cases) for r in requests]
    assert len(cases) == child.KEPT
    assert child._known(requests[4], cases) is known[4]
    assert child._known(requests[0], cases) is not known[0]


def test_inputs_at_other_extents_are_another_case() -> None:
    case = Case(CHAIN, 0, {}, 1e-5)
    flat = {n: logical(CHAIN, n, a) for n, a in case.made.data.items()}
    assert {n: a.shape for n, a in flat.items()} == {n: CHAIN.shape(n) for n in CHAIN.inputs}
