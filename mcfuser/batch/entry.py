"""Compiles and checks one entry, each step in a process of its own, which may die."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcfuser.batch.outcome import Outcome
from mcfuser.batch.state import file_hash
from mcfuser.batch.zoo import Entry
from mcfuser.process.command import run_command

MODULE = "mcfuser.cli.command"
"""The module whose `main` is the `mcfuser` command."""


class Unwanted(Exception):
    """An entry is abandoned, because the batch has no time left or was interrupted."""


class Unreachable(Exception):
    """A server cannot be reached, with the reason in a sentence."""


Wanted = Callable[[], bool]


def do(
    entry: Entry, folder: Path, refused: str | None, wanted: Wanted, lock: Path | None = None
) -> Outcome:
    """Compiles an entry into a folder and compares the module with onnxruntime.

    `refused` says why modules for its device cannot run here, if so: it is not checked then.
    `wanted` is called ten times a second; where it returns False, Unwanted is raised. Where there
    is a `lock`, the module is built as that file has it.
    """
    begun = time.monotonic()
    failed = _compiled(entry, folder, wanted, lock)
    if failed is not None:
        return Outcome("failed", failed, time.monotonic() - begun)
    _, summary = summary_of(entry, folder)
    if refused is not None:
        seconds = time.monotonic() - begun
        return Outcome("unchecked", f"compiled, not checked: {refused}", seconds, **summary)
    return compared(entry, folder, summary, begun, wanted)


def summary_of(entry: Entry, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report in an entry's folder, and the fields of its Outcome that do not need a run."""
    report = _object((folder / "report.json").read_bytes())
    chains = report.get("chains", [])
    beside = report.get("external", []) if entry.job is None else []
    return report, {
        "chains": len(chains),
        "fused": sum(bool(c["fused"]) for c in chains),
        "module": file_hash(folder / "module.so"),
        "external": {n: file_hash(entry.model.parent / n) for n in beside},
    }


def _compiled(entry: Entry, folder: Path, wanted: Wanted, lock: Path | None) -> str | None:
    """Compiles an entry; gives the reason where that failed, else None."""
    o = entry.options
    words = [
        "compile",
        str(entry.model),
        "-o",
        str(folder),
        "--device",
        entry.device,
        "--seed",
        str(o.seed),
        *(("--timeout", f"{o.timeout:f}s") if o.timeout is not None else ()),
        *(("--trials", str(o.trials)) if o.trials is not None else ()),
        *(f"--shape={s}" for s in entry.shapes),
        *(("--precision", o.precision) if o.precision is not None else ()),
        *(f"--in-place={pair}" for pair in o.in_place),
        *(("--locked", str(lock)) if lock is not None else ()),
        "--no-check",  # which `run --check` does, with the entry's own tolerance
    ]
    return _ran(words, None, folder / "log.txt", o.limit, wanted)


def seconds_of(entry: Entry, folder: Path, log: Path, wanted: Wanted) -> float | None:
    """The seconds of one run of an entry's module in a folder, None where it cannot be run. Raises
    Unwanted."""
    failed, comparison = _comparison(entry, folder, log, wanted)
    return float(comparison["mcfuser_seconds"]) if failed is None else None


def _comparison(
    entry: Entry, folder: Path, log: Path, wanted: Wanted
) -> tuple[str | None, dict[str, Any]]:
    """What `mcfuser run --check` said of a module: the reason where it failed, and its answer.

    Its status where the outputs differ is no failure: the answer says by how much.
    """
    answer = folder / "check.json"
    words = ["run", str(folder), "--check", str(entry.model), "--json"]
    answer.unlink(missing_ok=True)  # a batch that was killed leaves its own, and output is appended
    try:
        failed = _ran(words, answer, log, entry.options.limit, wanted)
        comparison = _object(answer.read_bytes())
        return (None if "error" in comparison else failed), comparison
    finally:
        answer.unlink(missing_ok=True)


def compared(
    entry: Entry,
    folder: Path,
    summary: Mapping[str, Any],
    begun: float,
    wanted: Wanted,
) -> Outcome:
    """The outcome of an entry whose module is run here and compared with onnxruntime. It was begun
    at `begun` (time.monotonic). Raises Unwanted."""
    failed, comparison = _comparison(entry, folder, folder / "log.txt", wanted)
    seconds = time.monotonic() - begun
    if failed is not None:
        return Outcome("failed", f"compiled, not checked: {failed}", seconds, **summary)
    error, tolerance = float(comparison["error"]), entry.options.tolerance
    tolerance = tolerance or float(comparison["tolerance"])
    times = (comparison["mcfuser_seconds"], comparison["onnxruntime_seconds"])
    reason = None
    if not error <= tolerance:
        reason = (
            f"its outputs differ from onnxruntime's by {error:.1e}, more than {tolerance:.1e}; "
            "mcfuser bisect names the first operator that differs"
        )
    state, finite = "disagreed" if reason else "passed", error if math.isfinite(error) else None
    return Outcome(state, reason, seconds, finite, tolerance, *times, **summary)  # type: ignore[arg-type]


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object; an empty one where the process that should write it has failed."""
    document = json.loads(data) if data.strip() else {}
    return document if isinstance(document, dict) else {}


# --- the process ----------------------------------------------------------------------------


def _ran(
    words: Sequence[str], output: Path | None, log: Path, limit: float, wanted: Wanted
) -> str | None:
    """Runs the command with these arguments, for `limit` seconds at most; gives the reason where it
    failed, else None.

    Its messages are appended to the log, and its output to `output`. Raises Unwanted.
    """

    def check() -> None:
        if not wanted():
            raise Unwanted

    death = run_command(MODULE, words, output or log, log, limit, check)
    if death is None:
        return None
    if death.why == "time":
        return f"{words[0]} took longer than {limit:.4g} s and was ended"
    if death.signalled:
        return f"{words[0]} died of {death.manner}"
    last = death.last[:500] or "it said nothing"
    told = last.removeprefix("mcfuser: ")
    return told if told != last else f"{words[0]} ended with {death.manner}: {last}"
