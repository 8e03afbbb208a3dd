"""The process that measures: reads requests from standard input, writes one answer per program.

    python -m mcfuser.measure.child module device

The module has a back end's `open_device` (mcfuser.measure.runner). Requests and answers are lines
of JSON (mcfuser.measure.request). The first line of output, {"failed": reason or null}, says
whether the device could be opened. Test cases are kept between requests, and made in advance where
a request says so. A fatal fault, after which the device cannot be used, ends the process; the
parent starts another.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, BinaryIO

from mcfuser.measure.case import Case
from mcfuser.measure.lease import lease
from mcfuser.measure.request import (
    COMPILED,
    KernelSequence,
    Measured,
    MeasureRequest,
    at_extents,
    failure,
)
from mcfuser.measure.rounds import quietest
from mcfuser.measure.runner import Bound, Runner, Unusable
from mcfuser.process.child import WAITS, WORKS
from mcfuser.process.load import load

KEPT = 3
"""Test cases that are kept: for a chain's candidates, and for its finalists on varied inputs and on
whole tensors."""


@dataclass(frozen=True)
class _KeptCase:
    """A test case whose arrays one thread makes while others wait for them."""

    case: Case
    lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def prepare(self) -> Case:
        with self.lock:
            _ = self.case.made
        return self.case


def serve(runner: Runner, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until `requests` ends, or a fault is fatal: that ends the process."""
    cases: dict[str, _KeptCase] = {}
    with ThreadPoolExecutor(1) as background:
        for line in requests:
            request = MeasureRequest.from_json(json.loads(line))
            known = _known(request, cases)
            if request.ahead:
                background.submit(known.prepare)
                continue
            runner.attend(known.case)
            for answer in _answers(runner, known, request):
                document = answer.to_json() if isinstance(answer, Measured) else answer
                answers.write(json.dumps(document).encode() + b"\n")
                answers.flush()
                if isinstance(answer, Measured) and answer.fatal:
                    os._exit(1)  # at once: whatever is called at exit would fail as well


def _known(request: MeasureRequest, cases: dict[str, _KeptCase]) -> _KeptCase:
    """The test case of a request: a kept one, or a new one in place of the oldest."""
    document = request.to_json()
    key = json.dumps([document[k] for k in ("chain", "inputs", "extents")])
    if key not in cases:
        while len(cases) >= KEPT:
            del cases[next(iter(cases))]
        inputs, chain = request.inputs, at_extents(request.chain, request.extents)
        case = Case(
            chain, inputs.seed, inputs.offsets, inputs.tolerance, inputs.varied, budget=inputs.flops
        )
        cases[key] = _KeptCase(case)
    return cases[key]


def _answers(
    runner: Runner, known: _KeptCase, request: MeasureRequest
) -> Iterator[Measured | Mapping[str, Any]]:
    """The answers to a request, one per program.

    WAITS and WORKS are between them: the parent does not count the time for which the process
    waits for a lease.
    """
    case = known.prepare()
    yield WAITS
    with lease(runner.resource, exclusive=False) if runner.builds else nullcontext():
        yield WORKS
        built = _built(runner, request.programs)
    yield WAITS
    with lease(runner.resource, exclusive=True):
        yield WORKS
        if request.together:
            yield from _together(runner, case, built, request)
            return
        for one in built:
            made = _checked(runner, case, one)
            if isinstance(made, Measured):
                yield made
            else:
                yield _timed(runner, [made], replace(request, baseline=None))[0]


def _built(runner: Runner, programs: Sequence[KernelSequence]) -> list[Any]:
    def build(program: KernelSequence) -> Any:
        try:
            return runner.build(program)
        except Exception as error:  # whatever a compiler raises is this program's failure
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return failure(f"it does not compile: {lines[-1][:300]}")

    if not runner.builds:
        return [build(p) for p in programs]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(build, programs))


def _together(
    runner: Runner, case: Case, built: Sequence[Any], request: MeasureRequest
) -> Iterator[Measured]:
    """The answers for programs that are timed together, interleaved.

    After a fatal fault of one program there is no time for those before it, whose answers say so,
    nor any answer for those after it.
    """
    made: list[Measured | tuple[Bound, float]] = []
    for one in built:
        made.append(_checked(runner, case, one))
        last = made[-1]
        if isinstance(last, Measured) and last.fatal:
            for m in made[:-1]:
                broken = failure("a program timed with it broke the device")
                yield m if isinstance(m, Measured) else broken
            yield last
            return
    good = [i for i, m in enumerate(made) if not isinstance(m, Measured)]
    right = [m for m in made if not isinstance(m, Measured)]
    baseline = good.index(request.baseline) if request.baseline in good else None
    times = iter(_timed(runner, right, replace(request, baseline=baseline)) if right else ())
    for m in made:
        yield m if isinstance(m, Measured) else next(times)


def _checked(runner: Runner, case: Case, built: Any) -> Measured | tuple[Bound, float]:
    """The program with its arguments and its error, or the answer that says why it is wrong."""
    if isinstance(built, Measured):
        return built
    try:
        bound = runner.bind(built, case)
        bound.run()
        error = case.worst(bound.outputs())
    except Exception as reason:  # whatever a device raises is this program's failure
        return runner.failed(reason)
    if isinstance(error, str):
        return Measured(None, None, error, wrong=True)
    return bound, error


def _timed(
    runner: Runner, made: Sequence[tuple[Bound, float]], request: MeasureRequest
) -> list[Measured]:
    try:
        rounds, state = runner.timed([bound for bound, _ in made], request)
    except Exception as reason:
        return [runner.failed(reason) for _ in made]
    state = {**state, "in_turns": len(made)}
    found = []
    for (bound, error), times in zip(made, rounds, strict=True):
        own = {COMPILED: round(bound.compiled, 3)} if bound.compiled is not None else {}
        seconds = statistics.median(quietest(times))
        found.append(Measured(seconds, error, None, tuple(times), {**state, **own}))
    return found


def main() -> None:
    module, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between answers
    runner, why = None, None
    try:
        runner = load(module).open_device(device)
    except Unusable as reason:
        why = str(reason)
    answers.write(json.dumps({"failed": why}).encode() + b"\n")
    answers.flush()
    if runner is not None:
        serve(runner, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
