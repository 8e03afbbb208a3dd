"""Webhooks: addresses that are told of a job's end, and which of them are due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal
from uuid import UUID, uuid4

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mcfuser_db.joblog import LogLine, add_lines
from mcfuser_db.models import IS_WAITING, OVER, Job, Webhook

if TYPE_CHECKING:
    from mcfuser_db.store import Storage


WebhookState = Literal["armed", "waiting", "delivered", "given up"]


def add_webhook(session: Session, job: Job, url: str, now: datetime) -> None:
    """Adds an address to tell of a job's end, unless it is to be told of that already."""
    unsettled = ("armed", "waiting")
    same = select(Webhook.id).where(
        Webhook.job == job.id, Webhook.url == url, Webhook.state.in_(unsettled)
    )
    if session.scalar(same.limit(1)) is not None:
        return
    over = job.state in OVER
    session.add(
        Webhook(
            id=uuid4(), job=job.id, url=url, created=now,
            state="waiting" if over else "armed", due=now if over else None,
        )
    )  # fmt: skip


def release_webhooks(session: Session, job: UUID, now: datetime) -> None:
    """Makes the webhooks of a job due, which is now over."""
    armed = update(Webhook).where(Webhook.job == job, Webhook.state == "armed")
    due = armed.values(state="waiting", due=now)
    session.execute(due.execution_options(synchronize_session=False))


def hold_webhooks(session: Session, job: UUID) -> None:
    """Lets the webhooks of a job that is done again wait for its next end."""
    waiting = update(Webhook).where(Webhook.job == job, IS_WAITING)
    held = waiting.values(state="armed", due=None)
    session.execute(held.execution_options(synchronize_session=False))


def rearm(session: Session, job: Job) -> None:
    """Lets the webhooks of a job that is put back wait for its next end, as other messages."""
    for webhook in session.scalars(select(Webhook).where(Webhook.job == job.id)).all():
        session.delete(webhook)
        session.flush()
        add_webhook(session, job, webhook.url, webhook.created)


def take_due(store: Storage, limit: int, lease: float) -> Sequence[tuple[Webhook, Job]]:
    """Webhooks whose attempt is due, with their jobs, which are over.

    An attempt is counted as it is taken. Others may take the webhook again after `lease` seconds,
    so that the death of who has taken it loses none.
    """
    now = store.now()
    oldest = select(Webhook).where(IS_WAITING, Webhook.due <= now).order_by(Webhook.due)
    with store.reading() as session:
        webhooks = session.scalars(oldest.limit(limit)).all()
    jobs = {job.id: job for job in store.snapshots({w.job for w in webhooks}) if job.state in OVER}
    until = now + timedelta(seconds=lease)
    return [(w, jobs[w.job]) for w in webhooks if w.job in jobs and _take(store, w, until)]


def _take(store: Storage, webhook: Webhook, until: datetime) -> bool:
    """Whether an attempt became ours, by compare-and-set."""
    mine = update(Webhook).where(
        Webhook.id == webhook.id, Webhook.state == "waiting", Webhook.attempts == webhook.attempts
    )
    taken = mine.values(attempts=webhook.attempts + 1, due=until).returning(Webhook.id)
    with store.writing() as session:
        if session.scalar(taken.execution_options(synchronize_session=False)) is None:
            return False
    webhook.attempts += 1
    return True


def settle(
    store: Storage,
    webhook: Webhook,
    state: WebhookState,
    words: str,
    wait: float = 0.0,
) -> None:
    """Notes how an attempt ended, with a line in the job's log; one that waits is due again in
    `wait` seconds."""
    now = store.now()
    mine = update(Webhook).where(Webhook.id == webhook.id, Webhook.attempts == webhook.attempts)
    with store.writing() as session:
        locked = select(Job.id).where(Job.id == webhook.job).with_for_update()
        if session.scalar(locked) is None:
            return
        session.execute(mine.values(state=state, due=now + timedelta(seconds=wait)))
        add_lines(session, webhook.job, [LogLine(now, words)])
