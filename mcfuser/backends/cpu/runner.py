"""The measuring process: reads requests on its standard input, answers a line a program.

It compiles all programs of a request while it shares the CPU, then checks and times them one by
one while it has the CPU alone.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import tvm

from mcfuser.chain import Chain, from_json
from mcfuser.codegen.tensorir import Panels
from mcfuser.codegen.tensorir.build import compile_function, pack
from mcfuser.measure.busy import watched
from mcfuser.measure.case import Case, stored_room
from mcfuser.measure.lease import lease
from mcfuser.measure.rounds import Bounds, in_turns, quietest
from mcfuser.process.child import WAITS, WORKS
from mcfuser.space.reference import logical

ROUND = 2e-3
"""Seconds that one timed round of calls should last."""
LATE = 10 * ROUND
"""Seconds after which a round ends where calls take longer than they first did."""
GROUP = 5e-5
"""Seconds of calls that are timed as one, so that reading the clock is no part of the figure."""
ROUNDS = 7
MOST_ROUNDS = 7 * 32
FEW_MOST_ROUNDS = 12
EXTRA = 5.0
"""Seconds for which programs are timed in turns at most, where fewer rounds do not settle it."""
SPARE = 0.5
"""Seconds before the deadline of who asked, in which no round is begun but the first ones."""
KEPT = 3
"""Cases kept: what candidates of a chain are checked on, and its finalists."""
FEW_ROUNDS = 3
"""For programs of which one call lasts longer than LONG seconds."""
LONG = 0.1


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    cases: dict[str, Case] = {}
    for line in requests:
        for answer in _serve(json.loads(line), cases):
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def _serve(request: Mapping[str, Any], cases: dict[str, Case]) -> Iterator[dict[str, Any]]:
    case = _case(request, cases)
    data = case.made.data
    yield WAITS
    with lease("cpu", exclusive=False), ThreadPoolExecutor(os.cpu_count()) as pool:
        yield WORKS
        built = list(pool.map(_build, request["programs"]))
    programs: list[Any] = [p if isinstance(p, str) else _bind(case.chain, p, data) for p in built]
    yield WAITS
    with lease("cpu", exclusive=True):
        yield WORKS
        if request["together"]:
            yield from _together(case, programs, request)
            return
        for program in programs:
            error = _check(case, program)
            if isinstance(error, str):
                yield _answer(error, (), {})
                continue
            times, state = _interleaved([program[0]], request)
            yield _answer(error, times[0], state)


def _case(request: Mapping[str, Any], cases: dict[str, Case]) -> Case:
    """The request's case, one of those known or a new one instead of the oldest."""
    key = json.dumps([request[k] for k in ("chain", "seed", "offsets", "varied")])
    if key not in cases:
        while len(cases) >= KEPT:
            del cases[next(iter(cases))]
        chain = from_json(request["chain"])
        cases[key] = Case(
            chain, request["seed"], request["offsets"], request["tolerance"], request["varied"]
        )
    return cases[key]


def _together(
    case: Case, programs: Sequence[Any], request: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    errors = [_check(case, p) for p in programs]
    right = [i for i, e in enumerate(errors) if not isinstance(e, str)]
    baseline = right.index(b) if (b := request["baseline"]) in right else None
    times, state = _interleaved([programs[i][0] for i in right], {**request, "baseline": baseline})
    left = iter(times)
    for error in errors:
        yield _answer(error, next(left) if isinstance(error, float) else (), state)


def _answer(error: float | str, times: Sequence[float], state: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(error, str):
        return {"seconds": None, "error": None, "failed": error, "times": []}
    return {
        "seconds": statistics.median(quietest(times)),
        "error": error,
        "failed": None,
        "times": list(times),
        "conditions": dict(state),
    }


def _build(program: Sequence[Mapping[str, Any]]) -> Any:
    try:
        return [(k, compile_function(k["text"], k["name"])) for k in program]
    except Exception as error:  # whatever a compiler throws is this program's failure, and told
        return f"it does not compile: {str(error).strip().splitlines()[-1][:300]}"


def _bind(chain: Chain, built: Any, data: Mapping[str, Any]) -> Any:
    """The program as a call without arguments, and its outputs."""
    tensors: dict[str, Any] = {}
    calls: list[tuple[Callable[..., None], list[Any]]] = []
    for kernel, function in built:
        part = from_json(kernel["chain"])
        arguments = []
        for name in part.inputs:
            if name in kernel["packed"]:
                panels = Panels(*kernel["packed"][name])
                arguments.append(tvm.runtime.tensor(pack(logical(chain, name, data[name]), panels)))
                continue
            if name not in tensors:
                tensors[name] = tvm.runtime.tensor(_shaped(part, kernel, name, data[name]))
            arguments.append(tensors[name])
        arguments += kernel["scalars"]
        for name in part.outputs:
            empty = stored_room(part, name)
            empty.view(np.uint8)[:] = 0xFF  # not a number
            tensors[name] = tvm.runtime.tensor(_shaped(part, kernel, name, empty))
            arguments.append(tensors[name])
        calls.append((function, arguments))

    def run() -> None:
        for function, arguments in calls:
            function(*arguments)

    return run, {n: tensors[n] for n in chain.outputs}


def _shaped(part: Chain, kernel: Mapping[str, Any], name: str, flat: Any) -> Any:
    """An array as the kernel takes it."""
    if part.tensor(name).dtype == "bfloat16":
        flat = flat.view(ml_dtypes.bfloat16)
    return flat.reshape(part.shape(name)) if name in kernel["shaped"] else flat


def _check(case: Case, program: Any) -> float | str:
    """The norm-wise relative error, the largest over the outputs; or what is wrong."""
    if isinstance(program, str):
        return program
    run, outputs = program
    run()
    worst = 0.0
    for name, tensor in outputs.items():
        found = tensor.numpy().reshape(-1)
        found = found.view(np.uint16) if found.dtype == ml_dtypes.bfloat16 else found
        error = case.error(name, logical(case.chain, name, found))
        if isinstance(error, str):
            return error
        worst = max(worst, error)
    return worst


def _interleaved(
    runs: Sequence[Callable[[], None]], request: Mapping[str, Any]
) -> tuple[list[list[float]], dict[str, Any]]:
    """Seconds a call, some rounds of each, taken in turns until what is chosen is settled; and the
    state of the machine meanwhile."""
    timed, round_, longest = list[Callable[[], float]](), 0.0, 0.0
    for run in runs:
        run()
        once = _seconds(run, 1, 1)
        group = max(1, int(GROUP / max(once, 1e-7)))
        groups = max(1, int(ROUND / max(once * group, 1e-7)))
        timed.append(partial(_seconds, run, groups, group))
        round_, longest = round_ + once * group * groups, max(longest, once)
    least = ROUNDS if longest < LONG else FEW_ROUNDS
    baseline, begun = request["baseline"], time.monotonic()
    end = begun + max(EXTRA, 3 * least * round_ if baseline is not None else 0.0)
    if request["until"] is not None:
        end = min(end, request["until"] - SPARE)
    most = MOST_ROUNDS if longest < LONG else FEW_MOST_ROUNDS
    bounds = Bounds(least, most if len(runs) > 1 else least, end, baseline)
    with _apart(), watched() as state:
        times = in_turns(timed, bounds, time.monotonic)
    state["in_turns"] = len(runs)
    return times, state


def _seconds(run: Callable[[], None], groups: int, group: int) -> float:
    """Seconds a call, the least of some groups of so many calls in a row: what else wants a core
    interrupts some of them, and makes none shorter."""
    least, begun = math.inf, time.perf_counter()
    for _ in range(groups):
        start = time.perf_counter()
        for _ in range(group):
            run()
        ended = time.perf_counter()
        least = min(least, ended - start)
        if ended - begun > LATE:
            break
    return least / group


@contextmanager
def _apart() -> Iterator[None]:
    """Keeps this thread off the cores that TVM's pool has bound its own threads to: the system may
    leave both on one core for seconds, and a kernel then seems to take twice its time."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    mine, before = threading.get_native_id(), os.sched_getaffinity(0)
    bound: set[int] = set()
    for name in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            cores = os.sched_getaffinity(int(name)) if int(name) != mine else set()
            bound |= cores if len(cores) == 1 else set()
    os.sched_setaffinity(0, before - bound or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between answers
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
