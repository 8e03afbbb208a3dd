"""Does an entry on a server: posts it, or takes up its job, and fetches the module and report."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcfuser.arguments.shapes import ranged_shapes
from mcfuser.batch.address import JOB
from mcfuser.batch.entry import Unwanted, Wanted, compared, summary_of
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.posted import body_of
from mcfuser.batch.server import Pause, ServerClient, ServerRefusal
from mcfuser.batch.state import ENVELOPE, write
from mcfuser.batch.zoo import Entry
from mcfuser.errors import InputError
from mcfuser.extents import to_json

POLL = 1.0
"""Seconds between two looks at a job."""
JOB_FILE = "job.json"
"""The file in an entry's folder with the job that was posted for it."""


def do_there(
    entry: Entry, key: str, folder: Path, server: ServerClient, arch: str | None, wanted: Wanted
) -> Outcome:
    """The outcome of an entry whose module a server compiles.

    The job is noted in the folder before it is followed: a batch that dies takes it up again.
    `arch` is this machine's architecture for the entry's device, None where modules for it cannot
    run here. Where it is the module's, the module is compared with onnxruntime and timed here, else
    the comparison is the server's. Raises Unwanted, Unreachable.
    """
    begun = time.monotonic()

    def pause(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not wanted():
                raise Unwanted
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    try:
        folder.mkdir(parents=True, exist_ok=True)
        job = _ended(entry, key, folder, server, pause)
        if job["state"] != "done":
            (folder / JOB_FILE).unlink(missing_ok=True)
            return Outcome("failed", _why(job), time.monotonic() - begun)
        server.report(job["id"], folder / "report.json", pause)
        server.module(job["id"], folder / "module.so", job["module"]["sha256"], pause)
        server.attestation(job["id"], folder / ENVELOPE, pause)
    except ServerRefusal as refusal:
        (folder / JOB_FILE).unlink(missing_ok=True)
        reason = f"the server at {server.shown} refuses it: {refusal}"
        return Outcome("failed", reason, time.monotonic() - begun)
    except (KeyError, TypeError) as error:
        reason = f"the server at {server.shown} answers in another form: {error!r}"
        return Outcome("failed", reason, time.monotonic() - begun)
    return _outcome(entry, folder, arch, begun, wanted)


def _outcome(entry: Entry, folder: Path, arch: str | None, begun: float, wanted: Wanted) -> Outcome:
    report, summary = summary_of(entry, folder)
    if entry.job is None and arch is not None and report.get("arch") == arch:
        shapes = _shapes(entry, report)
        if report.get("shapes") != shapes:  # the server may have signed the report as it is
            words = json.dumps({**report, "shapes": shapes}, indent=2)
            write(folder / "report.json", f"{words}\n")
        return compared(entry, folder, summary, begun, wanted)
    return replace(_checked_there(entry, report, summary), seconds=time.monotonic() - begun)


def _shapes(entry: Entry, report: dict[str, Any]) -> dict[str, Any]:
    """The shapes that the module was compiled for, as `mcfuser compile` writes them."""
    return to_json(ranged_shapes(entry.shapes)) if entry.shapes else report.get("shapes", {})


def _checked_there(entry: Entry, report: dict[str, Any], summary: dict[str, Any]) -> Outcome:
    """The outcome by the server's own comparison."""
    check = report.get("check")
    found = check if isinstance(check, dict) else {}
    error, passes = found.get("error"), found.get("tolerance")
    if not isinstance(error, int | float):
        why = found.get("skipped") or "the server did not compare it"
        return Outcome("unchecked", f"compiled, not checked: {why}", **summary)
    tolerance = entry.options.tolerance or (float(passes) if passes is not None else None)
    if tolerance is not None and not error <= tolerance:
        reason = f"its outputs differ from onnxruntime's by {error:.1e}, more than {tolerance:.1e}"
        finite = float(error) if math.isfinite(error) else None
        return Outcome("disagreed", reason, error=finite, tolerance=tolerance, **summary)
    return Outcome("passed", error=float(error), tolerance=tolerance, **summary)


# --- the job --------------------------------------------------------------------------------


def _ended(
    entry: Entry, key: str, folder: Path, server: ServerClient, pause: Any
) -> dict[str, Any]:
    """The entry's job, when it has ended."""
    name = _name(entry) or _noted(folder, key)
    job = _found(server, name, pause) if name is not None else None
    if job is None:
        if entry.job is not None:
            raise ServerRefusal(404, f"job {name} is not there")
        with body_of(entry.model) as body:
            job = server.post(body, _options(entry), pause)
        write(folder / JOB_FILE, json.dumps({"key": key, "job": job["id"]}) + "\n")
    running_since = None
    while job["state"] in ("queued", "running"):
        if job["state"] == "running":
            running_since = running_since or time.monotonic()
            if time.monotonic() - running_since > entry.options.limit:
                raise InputError(f"it took the server longer than {entry.options.limit:.4g} s")
        pause(POLL)
        job = server.job(job["id"], pause)
    return job


def _name(entry: Entry) -> str | None:
    """The job that the zoo names, if it names one."""
    match = JOB.fullmatch(entry.job) if entry.job is not None else None
    return match["job"] if match is not None else None


def _noted(folder: Path, key: str) -> str | None:
    """The job that an earlier batch has posted for the same work."""
    try:
        document = json.loads((folder / JOB_FILE).read_bytes())
        return str(document["job"]) if document["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _found(server: ServerClient, name: str, pause: Pause) -> dict[str, Any] | None:
    """A job; None where the server does not know it (any more), or it was cancelled."""
    try:
        job = server.job(name, pause)
    except ServerRefusal as refusal:
        if refusal.status in (404, 422):
            return None
        raise
    return job if job["state"] != "cancelled" else None


def _options(entry: Entry) -> list[tuple[str, str]]:
    """The query of POST /v1/jobs."""
    o = entry.options
    return [
        ("device", entry.device),
        ("seed", str(o.seed)),
        *(("shape", shape) for shape in entry.shapes),
        *((("trials", str(o.trials)),) if o.trials is not None else ()),
        *((("timeout", f"{o.timeout:f}s"),) if o.timeout is not None else ()),
        *((("precision", o.precision),) if o.precision is not None else ()),
        *(("in_place", pair) for pair in o.in_place),
    ]


def _why(job: dict[str, Any]) -> str:
    """Why a job has no module."""
    if job["state"] == "cancelled":
        return "its job was cancelled on the server"
    problem = job.get("problem")
    detail = problem.get("detail") if isinstance(problem, dict) else None
    return str(detail or "its job failed on the server, which does not say why")[:2000]
