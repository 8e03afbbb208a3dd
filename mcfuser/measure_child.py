"""The measuring process: reads requests on its standard input, answers a line a program.

It compiles all programs of a request while it shares the CPU, then checks and times them one by
one while it has the CPU alone.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import tvm

from mcfuser.case import Case, stored_room
from mcfuser.chain import Chain, from_json
from mcfuser.child import WAITS, WORKS
from mcfuser.codegen.cpu import compile_function, pack
from mcfuser.codegen.tensorir import Panels
from mcfuser.lease import lease
from mcfuser.space.reference import logical

ROUND = 2e-3
"""Seconds that one timed round of calls should last at least, so that the clock's step is small."""
ROUNDS = 7
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
            yield from _together(case, programs)
            return
        for program in programs:
            error = _check(case, program)
            yield _answer(error, _interleaved([program[0]])[0] if isinstance(error, float) else ())


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


def _together(case: Case, programs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    errors = [_check(case, p) for p in programs]
    right = [p[0] for p, e in zip(programs, errors, strict=True) if not isinstance(e, str)]
    times = iter(_interleaved(right))
    for error in errors:
        yield _answer(error, next(times) if isinstance(error, float) else ())


def _answer(error: float | str, times: Sequence[float]) -> dict[str, Any]:
    if isinstance(error, str):
        return {"seconds": None, "error": None, "failed": error, "times": []}
    return {
        "seconds": statistics.median(times),
        "error": error,
        "failed": None,
        "times": list(times),
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


def _interleaved(runs: Sequence[Callable[[], None]]) -> list[list[float]]:
    """Seconds a call, some rounds of each, taken in turns."""
    calls, longest = [], 0.0
    for run in runs:
        run()
        start = time.perf_counter()
        run()
        once = time.perf_counter() - start
        calls.append(max(1, int(ROUND / max(once, 1e-7))))
        longest = max(longest, once)
    times: list[list[float]] = [[] for _ in runs]
    with _apart():
        for _ in range(ROUNDS if longest < LONG else FEW_ROUNDS):
            for kept, run, count in zip(times, runs, calls, strict=True):
                start = time.perf_counter()
                for _ in range(count):
                    run()
                kept.append((time.perf_counter() - start) / count)
    return times


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
