"""Measuring in a process that may die: what a program computes is checked, then it is timed.

The worker is one child process that serves many requests, one JSON line each. A program that
crashes, hangs or runs out of memory costs itself and a new child, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from mcfuser.chain import Chain, flops, to_json
from mcfuser.codegen.tensorir import Source

TOLERANCE: Mapping[str, float] = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest norm-wise relative error against float64, by the type that the chain stores."""


SLOWEST = 2e9
"""Flops per second that the float64 reference and all timed runs of a program reach at least."""


@dataclass(frozen=True)
class Kernel:
    """A generated function and the chain that it computes."""

    chain: Chain
    source: Source


Program = Sequence[Kernel]
"""Kernels run in order; they pass tensors by name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds a call (median) and the error found; or the reason why there are none."""

    seconds: float | None
    error: float | None
    failed: str | None = None
    times: tuple[float, ...] = ()


def tolerance(chain: Chain) -> float:
    return max(TOLERANCE.get(chain.tensor(n).dtype, 1e-5) for n in (*chain.inputs, *chain.outputs))


class Worker:
    """A child process that measures on the CPU; use it as a context manager.

    `limit` is the longest that one program may take, seconds, besides what its flops take at
    `SLOWEST`; `memory` bounds the child's address space, bytes.
    """

    def __init__(self, threads: int, limit: float = 20.0, memory: int = 16 << 30) -> None:
        self.threads, self.limit, self.memory = threads, limit, memory
        self._child: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def warm(self) -> None:
        """Starts the child, which takes a second to import what it needs, without waiting."""
        if self._child is None or self._child.poll() is not None:
            self._start()

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._child = None
            self._pending = b""

    def measure(
        self,
        chain: Chain,
        programs: Sequence[Program],
        seed: int,
        together: bool = False,
        deadline: float | None = None,
    ) -> list[Measured]:
        """Checks and times programs that compute `chain`, on inputs drawn from `seed`.

        `together` times them in turns, for a comparison that drift does not touch. Past the
        `deadline` (time.monotonic) what is left fails with that reason.
        """
        results: list[Measured] = []
        while len(results) < len(programs):
            if deadline is not None and time.monotonic() > deadline:
                results += [Measured(None, None, "no time left")] * (len(programs) - len(results))
                break
            part = programs[len(results) :]
            request = _request(chain, part, seed, together)
            for answer in self._ask(request, len(part), self.limit + flops(chain) / SLOWEST):
                results.append(answer)
        return results

    def _ask(self, request: Mapping[str, Any], count: int, limit: float) -> Iterator[Measured]:
        """Answers in the order of the programs; the last one says why, where the child died."""
        self.warm()
        assert self._child is not None and self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self.stop()
            yield Measured(None, None, "the measuring process died before it began")
            return
        for _ in range(count):
            line = self._line(limit)
            if isinstance(line, str):
                self.stop()
                yield Measured(None, None, line)
                return
            answer = json.loads(line)
            yield Measured(
                answer["seconds"], answer["error"], answer["failed"], tuple(answer["times"])
            )

    def _line(self, limit: float) -> bytes | str:
        """The child's next line, or why there is none."""
        assert self._child is not None and self._child.stdout is not None
        stream = self._child.stdout
        end = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return f"it ran longer than {limit:.3g} s"
                chunk = os.read(stream.fileno(), 1 << 16)
                if not chunk:
                    code = self._child.wait()
                    return f"the measuring process died with status {code}"
                self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        return line

    def _start(self) -> None:
        self.stop()
        threads = str(self.threads)
        environment = {
            **os.environ,
            "TVM_NUM_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": "1",  # its threads spin after a product and spoil timings
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mcfuser.measure_child", str(self.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )


def _request(
    chain: Chain, programs: Sequence[Program], seed: int, together: bool
) -> dict[str, Any]:
    return {
        "chain": to_json(chain),
        "seed": seed,
        "tolerance": tolerance(chain),
        "together": together,
        "programs": [[_kernel(k) for k in p] for p in programs],
    }


def _kernel(k: Kernel) -> dict[str, Any]:
    packed = {n: [p.depth, p.columns, p.width] for n, p in k.source.packed}
    return {"chain": to_json(k.chain), "text": k.source.text, "name": k.source.name,
            "packed": packed}  # fmt: skip
