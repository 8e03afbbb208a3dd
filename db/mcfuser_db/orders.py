"""Posting of jobs: equal work is one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from mcfuser_db.database import RACES
from mcfuser_db.job_events import add_event
from mcfuser_db.joblog import add_lines
from mcfuser_db.keyed import KeyedRequest, job_of_key, keep_key
from mcfuser_db.models import IS_LIVE, Job
from mcfuser_db.quota import check_disk, check_queue
from mcfuser_db.transitions import FRESH, Transitions
from mcfuser_db.webhooks import add_webhook, rearm


@dataclass(frozen=True, slots=True)
class Order:
    """The work of a new job. `work` is a hash of everything that its result depends on, `model` the
    SHA-256 of the model.

    The `name` is for people; of the jobs that are due, those of the highest `priority` are done
    first. `webhook` is an address to tell of the job's end. `api_key` is the id of the key that the
    work is posted with, None where it is posted without one.
    """

    work: str
    model: str
    model_bytes: int
    device: str
    options: dict[str, Any]
    name: str | None = None
    priority: int = 0
    webhook: str | None = None
    api_key: str | None = None


class OrderStore(Transitions):
    """Jobs as they are posted, shared, and put back in the queue."""

    def submit(self, order: Order, key: KeyedRequest | None = None) -> tuple[Job, bool]:
        """The job that does this work, a new one if there is none, and whether it is new.

        A job that is there already is given the order's name if it has none, and its priority if
        that is higher. Where a post with the same `key` was answered with a job, it is that job,
        as it is; raises KeyReused where that post was another request. Raises OverQuota where a
        new job would take more than those of the order's API key may.
        """
        for _ in range(RACES):
            try:
                with self._write.begin() as session:
                    if (known := self._keyed(session, key)) is not None:
                        return known, False
                    if (job := self._shared(session, order)) is not None:
                        self._note_post(session, job, order, key)
                        return job, False
                    check_queue(session, order.api_key)
                    check_disk(session, order.api_key, order.model, order.model_bytes)
                    job = Job(
                        id=uuid4(), work=order.work, model=order.model,
                        model_bytes=order.model_bytes, device=order.device, options=order.options,
                        name=order.name, priority=order.priority, created=self._now(),
                        api_key=order.api_key,
                    )  # fmt: skip
                    session.add(job)
                    session.flush()
                    add_event(session, job, self._now())
                    posted = f"posted for {order.device}: model {order.model}"
                    add_lines(session, job.id, self._lines(posted))
                    self._note_post(session, job, order, key)
                return job, True
            except IntegrityError:
                continue  # another process was first; its job is ours
        raise RuntimeError(f"the work {order.work} was submitted and ended {RACES} times over")

    def check_quota(self, order: Order) -> None:
        """Raises OverQuota where a new job would take more than those of the order's API key may;
        `submit` checks it again."""
        with self._write.begin() as session:
            check_queue(session, order.api_key)
            check_disk(session, order.api_key, order.model, order.model_bytes)

    def share(self, order: Order, key: KeyedRequest | None = None) -> Job | None:
        """As `submit`; None where there would be a new job."""
        for _ in range(RACES):
            try:
                with self._write.begin() as session:
                    if (known := self._keyed(session, key)) is not None:
                        return known
                    if (job := self._shared(session, order)) is not None:
                        self._note_post(session, job, order, key)
                    return job
            except IntegrityError:
                continue  # another process kept the same key
        raise RuntimeError(f"the work {order.work} was asked for {RACES} times over")

    def keyed(self, key: KeyedRequest) -> Job | None:
        """The job that a post with the same key was answered with; None if there was none.

        Raises KeyReused where that post was another request.
        """
        with self._read() as session:
            return self._keyed(session, key)

    def _keyed(self, session: Session, key: KeyedRequest | None) -> Job | None:
        return job_of_key(session, key, self._now()) if key is not None else None

    def _shared(self, session: Session, order: Order) -> Job | None:
        """The job that does the work already, with the name and the priority of another order."""
        job = session.scalar(select(Job).where(Job.work == order.work, IS_LIVE).with_for_update())
        if job is None:
            return None
        name = job.name if job.name is not None else order.name
        priority = max(job.priority, order.priority) if job.state == "queued" else job.priority
        if (name, priority) != (job.name, job.priority):
            job.name, job.priority, job.version = name, priority, job.version + 1
            session.flush()
            add_event(session, job, self._now())
        if job.api_key != order.api_key:
            job.shared = True
        return job

    def _note_post(
        self, session: Session, job: Job, order: Order, key: KeyedRequest | None
    ) -> None:
        if key is not None:
            keep_key(session, key, job.id, self._now())
        if order.webhook is not None:
            add_webhook(session, job, order.webhook, self._now())
        session.flush()

    def put_back(self, id: UUID, api_key: str | None = None) -> Job | None:
        """Queues a job again that has failed or was cancelled; None where it did not.

        Where another job does the same work by now, it is that job, and this one stays as it is.
        Raises OverQuota where the key `api_key`, with which this is asked for, may have no more
        queued jobs.
        """
        for _ in range(RACES):
            try:
                with self._write.begin() as session:
                    job = session.get(Job, id, with_for_update=True)
                    if job is None or job.state not in ("failed", "cancelled") or job.removed:
                        return None
                    live = select(Job).where(Job.work == job.work, IS_LIVE)
                    if (other := session.scalar(live)) is not None:
                        return other
                    check_queue(session, api_key)
                    for name, value in FRESH.items():
                        setattr(job, name, value)
                    job.version += 1
                    session.flush()
                    add_event(session, job, self._now())
                    add_lines(session, id, self._lines("put back in the queue by a request"))
                    rearm(session, job)
                return job
            except IntegrityError:
                continue  # another process has posted the same work in between
        raise RuntimeError(f"the work of job {id} was submitted and ended {RACES} times over")
