"""Webhooks: addresses that are told of a job's end, and which of them are due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal
from uuid import UUID, uuid4

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session, defer

from mcfuser_db.joblog import LogLine, add_lines
from mcfuser_db.models import OVER, Job, Webhook

if TYPE_CHECKING:
    from mcfuser_db.store import Storage


WebhookState = Literal["waiting", "delivered", "given up"]


def add_webhook(session: Session, job: UUID, url: str, now: datetime) -> None:
    """Adds an address to tell of a job's end, unless it waits for that already."""
    same = select(Webhook.id).where(
        Webhook.job == job, Webhook.url == url, Webhook.state == "waiting"
    )
    if session.scalar(same.limit(1)) is None:
        session.add(Webhook(id=uuid4(), job=job, url=url, created=now))


def rearm(session: Session, job: UUID) -> None:
    """Lets the webhooks of a job that is put back wait for its next end, as other messages."""
    for webhook in session.scalars(select(Webhook).where(Webhook.job == job)).all():
        session.delete(webhook)
        session.flush()
        add_webhook(session, job, webhook.url, webhook.created)


def take_due(store: Storage, limit: int, lease: float) -> Sequence[tuple[Webhook, Job]]:
    """Webhooks whose attempt is due, with their jobs, which are over.

    An attempt is counted as it is taken. Others may take the webhook again after `lease` seconds,
    so that the death of who has taken it loses none.
    """
    now = store.now()
    due = or_(Webhook.due.is_(None), Webhook.due <= now)
    waiting = (
        select(Webhook, Job)
        .join(Job, Job.id == Webhook.job)
        .options(defer(Job.report, raiseload=True))
        .where(Webhook.state == "waiting", due, Job.state.in_(OVER))
        .order_by(Webhook.due, Webhook.created)
        .limit(limit)
    )
    with store.reading() as session:
        found = [(webhook, job) for webhook, job in session.execute(waiting).all()]
    return [(w, j) for w, j in found if _take(store, w, now + timedelta(seconds=lease))]


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
