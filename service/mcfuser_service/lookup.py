"""Finds a job, or says why it has no results."""

from __future__ import annotations

from uuid import UUID

from mcfuser_db import Job, Storage
from mcfuser_service.problems import ProblemError, error

RETRY = {"Retry-After": "1"}  # s
UNDONE = (
    "no-such-job", "not-ready", "cancelled", "lost", "bad-model", "timed-out", "out-of-memory",
    "crashed", "gave-up",
)  # fmt: skip
"""The problems of requests for a job's results; those from `lost` on are those of a failed job."""


def found(store: Storage, id: UUID) -> Job:
    """The job with an id; raises ProblemError where there is none."""
    job = store.job(id)
    if job is None:
        raise error("no-such-job", f"no job has the id {id}; list them at /v1/jobs")
    return job


def done(store: Storage, id: UUID) -> Job:
    """A job that is done; raises the problem of a failed job, and one where it is not done yet."""
    job = found(store, id)
    if job.state == "failed" and job.problem is not None:
        raise ProblemError(job.problem)
    if job.state == "cancelled":
        raise error("cancelled", f"job {id} was cancelled; post the model again")
    if job.state != "done":
        stage = f" ({job.stage})" if job.stage else ""
        late = error("not-ready", f"job {id} is {job.state}{stage}; ask again when it is done")
        raise ProblemError(late.details, RETRY)
    check_kept(job)
    return job


def check_kept(job: Job) -> None:
    """Raises ProblemError where the job's results were removed."""
    if job.removed is not None:
        when = f"{job.removed:%Y-%m-%d}"
        raise error(
            "lost",
            f"the results of job {job.id} were removed on {when} (MCFUSER_KEEP_AGE, "
            "MCFUSER_KEEP_BYTES); post the model again",
        )
