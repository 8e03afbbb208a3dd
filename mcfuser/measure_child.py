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

import numpy as np
import tvm

from mcfuser.chain import Chain, from_json
from mcfuser.codegen.cpu import compile_function, pack
from mcfuser.codegen.tensorir import Panels, flat_size
from mcfuser.lease import lease
from mcfuser.space.reference import evaluate, logical

ROUND = 2e-3
"""Seconds that one timed round of calls should last at least, so that the clock's step is small."""
ROUNDS = 7
FEW_ROUNDS = 3
"""For programs of which one call lasts longer than LONG seconds."""
LONG = 0.1


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    for line in requests:
        for answer in _serve(json.loads(line)):
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def _serve(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    chain = from_json(request["chain"])
    rng = np.random.default_rng(request["seed"])
    offsets = request.get("offsets", {})
    data = {n: _random(rng, chain, n, offsets.get(n, 0.0)) for n in chain.inputs}
    known = {n: logical(chain, n, a) for n, a in data.items()}
    expected = evaluate(chain, known)
    with lease("cpu", exclusive=False), ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(_build, request["programs"]))
    programs: list[Any] = [p if isinstance(p, str) else _bind(chain, p, data) for p in built]
    with lease("cpu", exclusive=True):
        if request["together"]:
            yield from _together(chain, programs, expected, request["tolerance"])
            return
        for program in programs:
            error = _check(chain, program, expected, request["tolerance"])
            yield _answer(error, _interleaved([program[0]])[0] if isinstance(error, float) else ())


def _together(
    chain: Chain, programs: Sequence[Any], expected: Mapping[str, Any], limit: float
) -> Iterator[dict[str, Any]]:
    errors = [_check(chain, p, expected, limit) for p in programs]
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


def _random(rng: np.random.Generator, chain: Chain, name: str, offset: float) -> Any:
    dtype, size = chain.tensor(name).dtype, flat_size(chain, name)
    if dtype in ("int32", "int64", "bool"):
        return rng.integers(0, 2, size).astype(dtype)
    return (rng.standard_normal(size) + offset).astype(dtype)


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
                tensors[name] = tvm.runtime.tensor(data[name])
            arguments.append(tensors[name])
        for name in part.outputs:
            dtype = part.tensor(name).dtype
            empty = np.full(flat_size(part, name), np.nan if "float" in dtype else 0, dtype)
            tensors[name] = tvm.runtime.tensor(empty)
            arguments.append(tensors[name])
        calls.append((function, arguments))

    def run() -> None:
        for function, arguments in calls:
            function(*arguments)

    return run, {n: tensors[n] for n in chain.outputs}


def _check(chain: Chain, program: Any, expected: Mapping[str, Any], limit: float) -> float | str:
    """The norm-wise relative error, the largest over the outputs; or what is wrong."""
    if isinstance(program, str):
        return program
    run, outputs = program
    run()
    worst = 0.0
    for name, tensor in outputs.items():
        found = logical(chain, name, tensor.numpy()).astype(np.float64)
        if not np.isfinite(found).all():
            return f"output '{name}' is not finite"
        norm = np.linalg.norm(expected[name]) or 1.0
        worst = max(worst, float(np.linalg.norm(found - expected[name]) / norm))
    return worst if worst <= limit else f"its error is {worst:.1e}, more than {limit:.0e}"


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
