"""The process that measures on a GPU: reads requests on its standard input, answers a line a
program. Its first line says whether there is such a GPU.

Inputs and reference are kept between requests, and made ahead where one says so. A fault ends the
process, since it leaves no usable GPU behind; the parent starts another.
"""

from __future__ import annotations

import base64
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mcfuser.backends.cuda import driver as gpus
from mcfuser.backends.cuda.driver import Gpu, Launch, Unusable
from mcfuser.backends.cuda.problem import BUDGET, WHOLE, Problem
from mcfuser.backends.cuda.timing import REPLAYS, conditions, timed
from mcfuser.chain import BYTES, from_json
from mcfuser.codegen.tensorir import flat_size
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.case import Case
from mcfuser.measure.lease import lease
from mcfuser.measure.rounds import Bounds, quietest
from mcfuser.process.child import WAITS, WORKS

Array = NDArray[Any]

MAP = ("dtype", "shape", "strides", "part", "swizzle")
"""What the driver is told of a tensor map."""
KEPT = 3
"""Problems kept: what candidates of a chain are checked on, and its finalists on varied inputs and
on whole tensors."""
MANY = 21
"""Replays of finalists, which are timed in turns, and"""
MOST = 21 * 8
"""the most where fewer do not settle which is the fastest, within"""
EXTRA = 1.5
"""seconds, and up to"""
SPARE = 0.5
"""seconds before the deadline of who asked."""


@dataclass(frozen=True)
class Program:
    """Kernels bound to their arguments, and the chain's outputs among these."""

    launches: tuple[Launch, ...]
    outputs: Mapping[str, Any]
    written: tuple[Any, ...]


def serve(gpu: Gpu, requests: BinaryIO, answers: BinaryIO) -> None:
    problems: dict[str, Problem] = {}
    with ThreadPoolExecutor(1) as beside:
        for line in requests:
            request = json.loads(line)
            problem = _problem(gpu, request, problems)
            if request["ahead"]:
                beside.submit(problem.prepare)
                continue
            for other in problems.values():
                if other is not problem:
                    other.release()
            for answer in _answers(problem, request):
                answers.write(json.dumps(answer).encode() + b"\n")
                answers.flush()
                if answer.get("over"):
                    os._exit(1)  # no tidy end: every call to the GPU would fail again


def _problem(gpu: Gpu, request: Mapping[str, Any], problems: dict[str, Problem]) -> Problem:
    """The request's problem, one of those known or a new one instead of the oldest."""
    key = json.dumps([request[k] for k in ("chain", "seed", "whole", "offsets", "varied")])
    if key not in problems:
        while len(problems) >= KEPT:
            del problems[next(iter(problems))]
        chain = from_json(request["chain"])
        budget = WHOLE if request["whole"] else BUDGET
        case = Case(
            chain, request["seed"], request["offsets"], request["tolerance"], request["varied"],
            budget=budget,
        )  # fmt: skip
        problems[key] = Problem(gpu, case)
    return problems[key]


def _answers(problem: Problem, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield WAITS
    with lease(f"gpu-{problem.gpu.uuid}", exclusive=True):
        yield WORKS
        if request["together"]:
            yield from _together(problem, request)
            return
        for kernels in request["programs"]:
            made = _checked(problem, kernels)
            if not isinstance(made, dict):
                made = _timed(problem.gpu, [made], REPLAYS, {**request, "baseline": None})[0]
            yield made


def _together(problem: Problem, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Answers of programs that are timed in turns; after a fault, those before it are told so."""
    made = []
    for kernels in request["programs"]:
        made.append(_checked(problem, kernels))
        last = made[-1]
        if isinstance(last, dict) and last["over"]:
            yield from (_failed(m["failed"] if isinstance(m, dict) else "a program timed beside "
                                "it broke the GPU", False) for m in made[:-1])  # fmt: skip
            yield last
            return
    good = [i for i, m in enumerate(made) if not isinstance(m, dict)]
    right = [m for m in made if not isinstance(m, dict)]
    baseline = good.index(b) if (b := request["baseline"]) in good else None
    asked = {**request, "baseline": baseline}
    times = iter(_timed(problem.gpu, right, MANY, asked) if right else ())
    yield from (m if isinstance(m, dict) else next(times) for m in made)


def _checked(
    problem: Problem, kernels: Sequence[Mapping[str, Any]]
) -> tuple[Program, float] | dict[str, Any]:
    """The program with the error found, or the answer that says why not."""
    try:
        problem.prepare()
        program = _bound(problem, kernels)
        for buffer in program.written:
            gpus.poison(problem.gpu, buffer)
        gpus.run(problem.gpu, program.launches)
        error = problem.error(program.outputs)
    except Unusable as reason:
        return _unusable(reason)
    except Exception as reason:  # whatever the driver says of a kernel is this program's failure
        if gpus.is_full(reason) and not gpus.broken(problem.gpu):
            return _unusable(gpus.full(problem.gpu.handle))
        words = str(reason).strip().splitlines() or [type(reason).__name__]
        first = words[0].partition(". ")[0][:200]
        return _failed(f"the GPU refuses it: {first}", gpus.broken(problem.gpu))
    return _failed(error, False) if isinstance(error, str) else (program, error)


def _timed(
    gpu: Gpu, made: Sequence[tuple[Program, float]], replays: int, request: Mapping[str, Any]
) -> list[dict[str, Any]]:
    found, until = [], request["until"]
    end = min(time.monotonic() + EXTRA, until - SPARE if until is not None else math.inf)
    bounds = Bounds(replays, MOST if len(made) > 1 else replays, end, request["baseline"])
    try:
        rounds = timed(gpu, [program.launches for program, _ in made], bounds)
    except Exception as reason:
        if not gpus.is_full(reason):
            raise
        return [_unusable(gpus.full(gpu.handle)) for _ in made]
    state = conditions(gpu) | {"in_turns": len(made)}
    for (_, error), times in zip(made, rounds, strict=True):
        found.append({"seconds": statistics.median(quietest(times)), "error": error, "failed": None,
                      "times": times, "conditions": state, "over": False})  # fmt: skip
    return found


def _failed(why: str, over: bool) -> dict[str, Any]:
    return {"seconds": None, "error": None, "failed": why, "times": [], "conditions": {},
            "over": over}  # fmt: skip


def _unusable(reason: Unusable) -> dict[str, Any]:
    """The GPU is not to be measured on; the program is not to blame."""
    return _failed(str(reason), False) | {"unusable": True}


def _bound(problem: Problem, kernels: Sequence[Mapping[str, Any]]) -> Program:
    """Kernels pass tensors by name; what they write is theirs alone."""
    gpu, tensors = problem.gpu, dict(problem.buffers)
    launches: list[Launch] = []
    for k in kernels:
        part = from_json(k["chain"])
        for name in part.outputs:
            size = flat_size(part, name) * BYTES[part.tensor(name).dtype]
            tensors[name] = gpus.allocate(gpu, size)
        beside = {}
        for w in k["workspace"]:
            beside[w["name"]] = gpus.allocate(gpu, w["size"] * BYTES[w["dtype"]])
            (gpus.clear if w["zero"] else gpus.poison)(gpu, beside[w["name"]])
        binary = gpus.load(base64.b64decode(k["cubin"]))
        for one in k["launches"]:
            taken = [beside[n] if n in beside else tensors[n] for n in one["arguments"]]
            for m in one["maps"]:
                address = int(tensors[m["tensor"]].handle) + m["start"]
                taken += gpus.tensor_map(address, *(m[n] for n in MAP))
            taken += [np.int32(n) for n in one["extents"]]
            launches.append(gpus.prepare(gpu, binary, one["name"], one["blocks"], k["threads"],
                                         k["shared"], taken))  # fmt: skip
    outputs = {n: tensors[n] for n in problem.chain.outputs}
    written = tuple(b for n, b in tensors.items() if n not in problem.buffers)
    return Program(tuple(launches), outputs, written)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between answers
    try:
        gpu, why = gpus.find(device_named(sys.argv[1])), None
    except Unusable as reason:
        gpu, why = None, str(reason)
    answers.write(json.dumps({"failed": why}).encode() + b"\n")
    answers.flush()
    if gpu is not None:
        serve(gpu, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
