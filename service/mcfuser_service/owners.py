"""Whose a job is: a key cancels and retries what was posted with it, an admin everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcfuser_db import Job, Storage
from mcfuser_db.api_keys import key_names
from mcfuser_service.access import Caller
from mcfuser_service.problems import ProblemError, error


def check_own(caller: Caller, job: Job, what: str) -> None:
    """Raises ProblemError where the caller may not cancel or retry a job; `what` is the verb."""
    if caller.is_admin or (caller.key is not None and caller.key == job.api_key):
        return
    raise error(
        "not-allowed",
        f"job {job.id} was not posted with key '{caller.name}' first; to {what} it takes that key, "
        "or one with the scope 'admin'",
    )


def not_alone(job: Job) -> ProblemError:
    """A key may not end a job that others wait for."""
    return error(
        "not-allowed",
        f"the work of job {job.id} was posted by others, too, and goes on for them; to cancel it "
        "takes a key with the scope 'admin'",
    )


def posters(store: Storage, caller: Caller, jobs: Sequence[Job]) -> Mapping[str | None, str]:
    """The names of the keys with which jobs were posted, by the keys' ids; empty for a caller who
    is no admin."""
    if not caller.is_admin:
        return {}
    names: dict[str | None, str] = {}
    names.update(key_names(store, [job.api_key for job in jobs if job.api_key is not None]))
    return names
