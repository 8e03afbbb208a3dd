"""Models are tried in processes of their own, which are started again when one dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from tests.support.paths import PYTHONPATH

What = Literal["kinds", "unrolled", "unrolled far", "inspect", "load", "build"]


@dataclass(frozen=True, slots=True)
class Trial:
    """How a model ended: good, refused, memory, raised or died; what was said; seconds."""

    number: int
    how: str
    said: str
    seconds: float


def tried(what: What, numbers: Sequence[int], processes: int = 2) -> list[Trial]:
    """The kinds or mutants of these numbers, each inspected or imported."""
    parts = [numbers[i::processes] for i in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        done = pool.map(lambda part: list(_batch(what, part)), parts)
        return sorted((t for part in done for t in part), key=lambda t: t.number)


def _batch(what: What, numbers: Sequence[int]) -> Iterator[Trial]:
    left = list(numbers)
    while left:
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.hostile.batch", what, *map(str, left[:2000])],
                stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                yield Trial(*json.loads(line))
                left.pop(0)
            if process.wait() != 0:
                errors.seek(0)
                words = errors.read().decode(errors="replace")[-2000:]
                yield Trial(left.pop(0), "died", f"status {process.returncode}: {words}", 0.0)
