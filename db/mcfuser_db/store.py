"""The database: jobs, which workers claim, tuned kernels, and readings of devices."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import (
    InstrumentedAttribute,
    Session,
    configure_mappers,
    defer,
    sessionmaker,
)

from mcfuser_db import again, candidates
from mcfuser_db.again import gave_up
from mcfuser_db.engine import connect, upgrade, writing
from mcfuser_db.joblog import JobLog, LogLine, add_lines, read_log
from mcfuser_db.keyed import KeyedRequest, job_of_key, keep_key
from mcfuser_db.models import (
    IS_LIVE,
    OVER,
    STATES,
    CandidateBatch,
    Job,
    KernelRow,
    KernelUse,
    Probed,
)
from mcfuser_db.quota import check_disk, check_queue
from mcfuser_db.webhooks import add_webhook, hold_webhooks, rearm, release_webhooks

if TYPE_CHECKING:
    from mcfuser.chain import Chain
    from mcfuser.device import Device
    from mcfuser.tune.key import CacheKey
    from mcfuser.tune.progress import Progress
    from mcfuser.tune.tried import Tried
    from mcfuser.tune.tuned import Tuned, Use

log = logging.getLogger(__name__)

StorageError = SQLAlchemyError
"""Is raised by every method where the database does not answer."""

_MOST_KEYS = 100  # kernels of one chain that are compared with a key
_MOST_REMOVED = 500  # kernels in one transaction
_RACES = 10  # attempts at a row that other processes change
_NO_CLAIM: Mapping[str, Any] = {
    "worker": None, "claim": None, "lease": None, "progress": None, "expected": None,
}  # fmt: skip
_FRESH: Mapping[str, Any] = {
    "state": "queued", "attempts": 0, "interrupted": 0, "due": None, "stage": "", "done": 0,
    "total": 0, "started": None, "finished": None, "module": None, "module_bytes": None,
    "report": None, "problem": None, "removed": None, "attestation": None,
}  # fmt: skip


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


class Storage:
    """Jobs, kernels and readings in one database, which any number of processes may open.

    A job is claimed by compare-and-set: its row changes only if it still is as it was read. The
    worker that claimed it must renew its claim. Every write of a worker names the claim, and
    returns False where that was lost (the job was cancelled, or the lease ran out).
    """

    def __init__(
        self, url: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC), attempts: int = 3
    ) -> None:
        """Opens the database and runs its migrations; raises InputError where this fails.

        `attempts` is the number of times that a job is tried.
        """
        engine = connect(url)
        upgrade(engine)
        configure_mappers()  # takes 3 ms, once
        self._engine = engine
        self._read = sessionmaker(engine, expire_on_commit=False)
        self._write = sessionmaker(writing(engine), expire_on_commit=False)
        self._now = clock
        self._attempts = attempts

    def close(self) -> None:
        self._engine.dispose()

    def reading(self) -> AbstractContextManager[Session]:
        """A session that reads."""
        return self._read()

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction that writes."""
        return self._write.begin()

    def now(self) -> datetime:
        return self._now()

    # --- jobs: from outside -----------------------------------------------------------------

    def submit(self, order: Order, key: KeyedRequest | None = None) -> tuple[Job, bool]:
        """The job that does this work, a new one if there is none, and whether it is new.

        A job that is there already is given the order's name if it has none, and its priority if
        that is higher. Where a post with the same `key` was answered with a job, it is that job,
        as it is; raises KeyReused where that post was another request. Raises OverQuota where a
        new job would take more than those of the order's API key may.
        """
        for _ in range(_RACES):
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
                    posted = f"posted for {order.device}: model {order.model}"
                    add_lines(session, job.id, self._lines(posted))
                    self._note_post(session, job, order, key)
                return job, True
            except IntegrityError:
                continue  # another process was first; its job is ours
        raise RuntimeError(f"the work {order.work} was submitted and ended {_RACES} times over")

    def check_quota(self, order: Order) -> None:
        """Raises OverQuota where a new job would take more than those of the order's API key may;
        `submit` checks it again."""
        with self._write.begin() as session:
            check_queue(session, order.api_key)
            check_disk(session, order.api_key, order.model, order.model_bytes)

    def share(self, order: Order, key: KeyedRequest | None = None) -> Job | None:
        """As `submit`; None where there would be a new job."""
        for _ in range(_RACES):
            try:
                with self._write.begin() as session:
                    if (known := self._keyed(session, key)) is not None:
                        return known
                    if (job := self._shared(session, order)) is not None:
                        self._note_post(session, job, order, key)
                    return job
            except IntegrityError:
                continue  # another process kept the same key
        raise RuntimeError(f"the work {order.work} was asked for {_RACES} times over")

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

    def live(self, work: str) -> Job | None:
        """The job with that work that is queued, running or done; None if there is none."""
        with self._read() as session:
            return session.scalar(select(Job).where(Job.work == work, IS_LIVE))

    def job(self, id: UUID) -> Job | None:
        """The job with an id."""
        with self._read() as session:
            return session.get(Job, id)

    def jobs(
        self, state: str | None = None, limit: int = 50, after: UUID | None = None
    ) -> Sequence[Job]:
        """Jobs, newest first, without their reports; `after` is the last one of the page before."""
        query = select(Job).options(defer(Job.report, raiseload=True))
        if state is not None:
            query = query.where(Job.state == state)
        with self._read() as session:
            if after is not None:
                if (last := session.get(Job, after)) is None:
                    return []
                query = query.where(_before(Job.created, last.created, Job.id, last.id))
            query = query.order_by(Job.created.desc(), Job.id.desc()).limit(limit)
            return session.scalars(query).all()

    def versions(self, ids: Iterable[UUID]) -> dict[UUID, int]:
        """The versions of jobs; without those that do not exist."""
        with self._read() as session:
            rows = session.execute(select(Job.id, Job.version).where(Job.id.in_(ids)))
            return {row.id: row.version for row in rows}

    def snapshots(self, ids: Iterable[UUID]) -> Sequence[Job]:
        """Jobs without their reports."""
        query = select(Job).options(defer(Job.report, raiseload=True)).where(Job.id.in_(ids))
        with self._read() as session:
            return session.scalars(query).all()

    def log(self, id: UUID) -> JobLog:
        """The log of a job; without lines where there is none."""
        with self._read() as session:
            return read_log(session, id)

    def cancel(self, id: UUID, api_key: str | None = None) -> bool:
        """Ends a job that is queued or running; its worker learns of it at its next renewal. With
        `api_key`, only where it was posted with that key alone."""
        own = (Job.api_key == api_key, Job.shared.is_(False)) if api_key is not None else ()
        return self._set(
            (Job.id == id, Job.state.in_(("queued", "running")), *own), "cancelled",
            state="cancelled", finished=self._now(), **_NO_CLAIM,
        )  # fmt: skip

    def requeue(self, id: UUID) -> bool:
        """Queues a done job again, because its module was lost."""
        words = "queued again: its module is no longer kept"
        return self._set((Job.id == id, Job.state == "done"), words, **_FRESH)

    def put_back(self, id: UUID, api_key: str | None = None) -> Job | None:
        """Queues a job again that has failed or was cancelled; None where it did not.

        Where another job does the same work by now, it is that job, and this one stays as it is.
        Raises OverQuota where the key `api_key`, with which this is asked for, may have no more
        queued jobs.
        """
        for _ in range(_RACES):
            try:
                with self._write.begin() as session:
                    job = session.get(Job, id, with_for_update=True)
                    if job is None or job.state not in ("failed", "cancelled") or job.removed:
                        return None
                    live = select(Job).where(Job.work == job.work, IS_LIVE)
                    if (other := session.scalar(live)) is not None:
                        return other
                    check_queue(session, api_key)
                    for name, value in _FRESH.items():
                        setattr(job, name, value)
                    job.version += 1
                    add_lines(session, id, self._lines("put back in the queue by a request"))
                    rearm(session, job)
                return job
            except IntegrityError:
                continue  # another process has posted the same work in between
        raise RuntimeError(f"the work of job {id} was submitted and ended {_RACES} times over")

    def attestation(self, id: UUID) -> str | None:
        """The signed statement of a job's module; None where there is none."""
        with self._read() as session:
            return session.scalar(select(Job.attestation).where(Job.id == id))

    def counts(self) -> dict[str, int]:
        """The number of jobs in each state."""
        with self._read() as session:
            rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
            return dict.fromkeys(STATES, 0) | dict(rows.all())

    # --- jobs: from a worker ----------------------------------------------------------------

    def claim(self, worker: str, lease: float) -> Job | None:
        """Claims the oldest queued job that is due, for `lease` seconds; None if there is none."""
        silent = "its worker was silent for longer than its lease"
        self._take_back(Job.lease < self._now(), silent, wait=False)  # the lease was the wait
        for _ in range(_RACES):
            with self._read() as session:
                waiting = session.execute(_next(self._now())).one_or_none()
            if waiting is None:
                return None
            claim, attempt = uuid4(), waiting.attempts + 1
            words = f"attempt {attempt} of {self._attempts} begins; worker '{worker}'"
            taken = self._set(
                (Job.id == waiting.id, Job.state == "queued", Job.attempts == waiting.attempts),
                words, state="running", due=None, worker=worker, claim=claim,
                lease=self._later(lease), attempts=attempt, started=self._now(), stage="", done=0,
                total=0,
            )  # fmt: skip
            job = self.job(waiting.id) if taken else None
            if job is not None and job.claim == claim:  # not cancelled in between
                return job
        return None  # other workers were faster each time

    def renew(
        self,
        claim: UUID,
        lease: float,
        progress: Progress | None = None,
        lines: Sequence[LogLine] = (),
    ) -> bool:
        """Extends a claim to `lease` seconds from now; writes the job's progress where that is
        given, and adds lines to its log."""
        values: dict[str, Any] = {"lease": self._later(lease)}
        if progress is not None:
            values |= {
                "stage": str(progress).replace("\0", "")[:200],  # PostgreSQL keeps no NUL
                "done": progress.done,
                "total": progress.total,
                "progress": progress.to_json(),
                "expected": self._later(progress.left) if progress.left is not None else None,
                "version": Job.version + 1,
            }
        with self._write.begin() as session:
            ids = self._update(session, (Job.claim == claim,), values)
            for id in ids:
                add_lines(session, id, lines)
            return bool(ids)

    def note_lines(self, id: UUID, lines: Sequence[LogLine]) -> None:
        """Adds lines to the log of a job, whoever holds it now."""
        if not lines:
            return
        with self._write.begin() as session:
            locked = select(Job.id).where(Job.id == id).with_for_update()
            if session.scalar(locked) is not None:
                add_lines(session, id, lines)

    def held(self, claim: UUID) -> bool:
        """Whether a claim is still valid."""
        with self._read() as session:
            return session.scalar(select(Job.id).where(Job.claim == claim)) is not None

    def finish(
        self, claim: UUID, module: str, module_bytes: int, report: dict[str, Any],
        attestation: str | None = None,
    ) -> bool:  # fmt: skip
        """Ends a job with its result: the digest and size of its module, its report and, if there
        is one, the signed statement of both."""
        return self._set(
            (Job.claim == claim,), f"done: a module of {module_bytes} bytes", state="done",
            finished=self._now(), module=module, module_bytes=module_bytes, report=report,
            attestation=attestation, stage="", **_NO_CLAIM,
        )  # fmt: skip

    def fail(self, claim: UUID, problem: Mapping[str, Any]) -> bool:
        """Ends a job with a problem (RFC 9457)."""
        words = f"failed: {problem.get('detail', '')}"
        return self._set((Job.claim == claim,), words, **self._failed(problem))

    def retry(self, claim: UUID, why: str = "the attempt failed") -> bool:
        """Queues a job whose attempt failed again, to wait for db.again.delay; fails it if that was
        the last attempt. The log says `why`."""
        return self._take_back(Job.claim == claim, why) > 0

    def give_back(self, claim: UUID) -> bool:
        """Queues a job again without counting the attempt, because the worker was asked to stop."""
        return self.postpone(claim, 0.0, "")

    def postpone(self, claim: UUID, seconds: float, stage: str) -> bool:
        """Queues a job again without counting the attempt, due in `seconds`; `stage` says what it
        waits for."""
        return self._set(
            (Job.claim == claim,), stage or "given back: the worker was asked to stop",
            state="queued", attempts=Job.attempts - 1, stage=stage[:200],
            due=self._later(seconds) if seconds else None, **_NO_CLAIM,
        )  # fmt: skip

    def release(self, worker: str, blame: bool = True) -> int:
        """Takes back the jobs of a worker that is known to be dead; gives their number.

        With `blame` the attempt counts as failed: the job may have killed the worker.
        """
        if blame:
            return self._take_back(Job.worker == worker, f"worker '{worker}' died")
        return sum(self.give_back(claim) for claim in self._claims(worker))

    def interrupted(self, worker: str) -> int:
        """Takes back the jobs that a worker held when its server was ended; gives their number.

        Their attempts do not count as failed, but a job to which this happens too often is given
        up.
        """
        held = (Job.state == "running", Job.worker == worker)
        problem = again.interrupted(again.INTERRUPTIONS)
        back = {
            "state": "queued", "attempts": Job.attempts - 1, "interrupted": Job.interrupted + 1,
            **_NO_CLAIM,
        }  # fmt: skip
        with self._write.begin() as session:
            spent = (*held, Job.interrupted >= again.INTERRUPTIONS)
            failed = self._change(session, spent, problem["detail"], self._failed(problem))
            words = f"queued again: the server of worker '{worker}' was ended"
            return failed + self._change(session, held, words, back)

    def _claims(self, worker: str) -> Sequence[UUID]:
        with self._read() as session:
            query = select(Job.claim).where(Job.worker == worker, Job.state == "running")
            return [claim for claim in session.scalars(query) if claim is not None]

    def _take_back(self, lost: ColumnElement[bool], why: str, wait: bool = True) -> int:
        """Queues running jobs again, and fails those whose last attempt this was."""
        lost = and_(Job.state == "running", lost)
        with self._read() as session:
            if session.scalar(select(Job.id).where(lost).limit(1)) is None:
                return 0  # workers ask this all day: only a change takes SQLite's lock
        with self._write.begin() as session:
            problem = gave_up(self._attempts)
            spent = (lost, Job.attempts >= self._attempts)
            words = f"{why}; given up after {self._attempts} attempts"
            count = self._change(session, spent, words, self._failed(problem))
            for tried in range(1, self._attempts):
                seconds = again.delay(tried) if wait else 0.0
                due = self._later(seconds) if wait else None
                values = {"state": "queued", "due": due, **_NO_CLAIM}
                words = f"{why}; queued again, to be tried in {seconds:g} s"
                count += self._change(session, (lost, Job.attempts == tried), words, values)
            return count

    def _failed(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        return {"state": "failed", "finished": self._now(), "problem": dict(problem), **_NO_CLAIM}

    def _set(self, where: Sequence[ColumnElement[bool]], words: str, **values: Any) -> bool:
        """Changes the jobs of a condition, with a line in their logs; whether there were any."""
        with self._write.begin() as session:
            return self._change(session, where, words, values) > 0

    def _change(
        self,
        session: Session,
        where: Sequence[ColumnElement[bool]],
        words: str,
        values: Mapping[str, Any],
    ) -> int:
        ids = self._update(session, where, {**values, "version": Job.version + 1})
        for id in ids:
            add_lines(session, id, self._lines(words))
            if values.get("state") in OVER:
                release_webhooks(session, id, self._now())
            elif values.get("state") == "queued":
                hold_webhooks(session, id)
        return len(ids)

    def _update(
        self, session: Session, where: Sequence[ColumnElement[bool]], values: Mapping[str, Any]
    ) -> Sequence[UUID]:
        changed = update(Job).where(*where).values(**values).returning(Job.id)
        plain = changed.execution_options(synchronize_session=False)
        return session.scalars(plain).all()

    def _lines(self, words: str) -> list[LogLine]:
        return [LogLine(self._now(), words)]

    def _later(self, seconds: float) -> datetime:
        return self._now() + timedelta(seconds=seconds)

    # --- kernels ----------------------------------------------------------------------------

    def get(self, key: str) -> Tuned | None:
        """The tuned kernel with a key; None if there is none, or it cannot be read, which is
        logged."""
        document = self.kernel(key)
        if document is None:
            return None
        from mcfuser.tune.record import check
        from mcfuser.tune.tuned import Tuned

        try:
            check(document)
            return Tuned.from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("kernel %s cannot be read and is tuned again: %r", key, error)
            return None

    def put(self, tuned: Tuned) -> None:
        """Keeps a tuned kernel, in place of one with the same key. The search for it is over: the
        candidates that it measured become one batch."""
        document = tuned.to_json()
        binary = base64.b64decode(str(document.pop("binary")))
        kernel = KernelRow(
            key=tuned.key, chain=tuned.chain.name, chain_key=tuned.chain.key,
            device=tuned.device, expression=tuned.expression, measured=tuned.measured,
            predicted=tuned.predicted, created=self._now(), made=document["made"],
            document=document, binary=binary,
        )  # fmt: skip
        for _ in range(_RACES):
            try:
                with self._write.begin() as session:
                    session.execute(delete(KernelRow).where(KernelRow.key == tuned.key))
                    session.add(kernel)
                    candidates.merge(session, tuned.key, self._now())
                return
            except IntegrityError:
                continue  # another process put it in between: now it is there to be replaced
        raise RuntimeError(f"kernel {tuned.key} cannot be kept: others remove it all the time")

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        """The cache keys of the kernels that are kept for a chain, newest first, without those that
        cannot be read."""
        from mcfuser.tune.key import CacheKey

        query = select(KernelRow.made).where(
            KernelRow.chain_key == chain_key, KernelRow.made.is_not(None)
        )
        with self._read() as session:
            newest = query.order_by(KernelRow.created.desc()).limit(_MOST_KEYS)
            documents = session.scalars(newest).all()
        keys: list[CacheKey] = []
        for document in documents:
            with suppress(KeyError, TypeError, ValueError):
                keys.append(CacheKey.from_json(document or {}))
        return keys

    def note(self, uses: Iterable[Use]) -> None:
        """Keeps which kernels a compiled model uses, and where."""
        rows = {(u.chain_key, _place(u.chain), u.kernel) for u in uses}
        for _ in range(_RACES):
            try:
                with self._write.begin() as session:
                    for chain_key, place, kernel in sorted(rows):
                        session.merge(KernelUse(chain_key=chain_key, place=place, kernel=kernel))
                return
            except IntegrityError:
                continue  # another process has noted the same in between
        raise RuntimeError(f"{len(rows)} uses of kernels cannot be kept: others write them, too")

    def tried(self, key: str) -> Sequence[Tried]:
        """The candidates that were measured under a cache key's digest, each with its last result,
        in the order in which they were first measured."""
        with self._read() as session:
            return candidates.read(session, key)

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        """Keeps candidates that were measured for a chain on a device."""
        with self._write.begin() as session:
            candidates.add(session, made.digest, chain.key, device, tried, self._now())

    def offered(self, key: CacheKey) -> None:
        """A database is asked for its kernels alone: nobody else's are looked up."""

    def kernel(self, key: str) -> dict[str, Any] | None:
        """The document of a kernel with its binary in base64; None if there is none or it is
        damaged."""
        query = select(KernelRow.document, KernelRow.binary).where(KernelRow.key == key)
        with self._read() as session:
            try:
                row = session.execute(query).one_or_none()
            except (ValueError, RecursionError) as error:  # the document is no JSON
                log.warning("kernel %s is damaged: %s", key, error)
                return None
        if row is None:
            return None
        if not isinstance(row.document, dict):
            log.warning("kernel %s is damaged: its document is no object", key)
            return None
        return {**row.document, "binary": base64.b64encode(row.binary).decode()}

    def kernels(
        self, device: str | None = None, chain: str | None = None, limit: int = 50,
        after: str | None = None, key: str | None = None,
    ) -> Sequence[KernelRow]:  # fmt: skip
        """Kernels, newest first, without documents and binaries; `after` is the last one of the
        page before. With a `key`, that kernel alone. `chain` is the name or the key of a chain that
        a kernel was tuned for, or in which a compiled model uses it."""
        unread = (
            defer(KernelRow.document, raiseload=True),
            defer(KernelRow.binary, raiseload=True),
        )
        query = select(KernelRow).options(*unread)
        if key is not None:
            query = query.where(KernelRow.key == key)
        if device is not None:
            query = query.where(KernelRow.device == device)
        if chain is not None:
            used = select(KernelUse.kernel).where(
                or_(KernelUse.chain_key == chain, KernelUse.place == _place(chain))
            )
            named = or_(KernelRow.chain == chain, KernelRow.chain_key == chain)
            query = query.where(or_(named, KernelRow.key.in_(used)))
        with self._read() as session:
            if after is not None:
                if (last := session.get(KernelRow, after, options=unread)) is None:
                    return []
                query = query.where(
                    _before(KernelRow.created, last.created, KernelRow.key, last.key)
                )
            query = query.order_by(KernelRow.created.desc(), KernelRow.key.desc()).limit(limit)
            return session.scalars(query).all()

    def keys_like(self, start: str, limit: int = 2) -> Sequence[str]:
        """At most `limit` keys of kernels that begin with `start`."""
        query = select(KernelRow.key).where(KernelRow.key.startswith(start, autoescape=True))
        with self._read() as session:
            return session.scalars(query.order_by(KernelRow.key).limit(limit)).all()

    def unfinished(self, device: str | None = None) -> Sequence[candidates.Unfinished]:
        """The searches that have kept candidates and no kernel: they were interrupted."""
        with self._read() as session:
            return candidates.unfinished(session, device)

    def renew_kernel(self, old: str, tuned: Tuned) -> None:
        """Keeps a kernel that was made anew from the one with the key `old`, in place of it: also
        where compiled models use that."""
        self.put(tuned)
        if tuned.key == old:
            return
        with self._write.begin() as session:
            uses = session.scalars(select(KernelUse).where(KernelUse.kernel == old)).all()
            for use in uses:
                session.merge(KernelUse(chain_key=use.chain_key, place=use.place, kernel=tuned.key))
        self.prune([old])

    def prune(self, keys: Iterable[str]) -> int:
        """Removes kernels, where compiled models use them, and the candidates of their searches;
        gives the number of kernels."""
        removed, every = 0, list(keys)
        for first in range(0, len(every), _MOST_REMOVED):
            some = every[first : first + _MOST_REMOVED]
            with self._write.begin() as session:
                session.execute(delete(CandidateBatch).where(CandidateBatch.key.in_(some)))
                session.execute(delete(KernelUse).where(KernelUse.kernel.in_(some)))
                rows = delete(KernelRow).where(KernelRow.key.in_(some)).returning(KernelRow.key)
                removed += len(session.scalars(rows).all())
        return removed

    def kernel_count(self) -> int:
        with self._read() as session:
            return session.scalar(select(func.count()).select_from(KernelRow)) or 0

    # --- devices ----------------------------------------------------------------------------

    def probed(self, device: Device) -> Device:
        """The device with the readings of its last probe; the device itself if there was none."""
        with self._read() as session:
            last = session.get(Probed, device.name)
        if last is None:
            return device
        readings = tuple((str(n), float(v)) for n, v in sorted(last.readings.items()))
        return replace(device, readings=readings)

    def keep_probe(
        self, device: str, readings: Mapping[str, float], conditions: Mapping[str, Any]
    ) -> None:
        """Keeps the readings of a device's probe, in place of earlier ones."""
        probed = Probed(
            device=device, readings=dict(readings), conditions=dict(conditions),
            created=self._now(),
        )  # fmt: skip
        with self._write.begin() as session:
            session.merge(probed)


def _next(now: datetime) -> Select[UUID, int]:
    """The oldest of the queued jobs that are due and of the highest priority."""
    waiting = and_(Job.state == "queued", _is_due(now))
    highest = select(Job.priority).where(waiting).order_by(Job.priority.desc()).limit(1)
    oldest = select(Job.id, Job.attempts).where(waiting, Job.priority == highest.scalar_subquery())
    return oldest.order_by(Job.created, Job.id).limit(1)


def _is_due(now: datetime) -> ColumnElement[bool]:
    return or_(Job.due.is_(None), Job.due <= now)


def _place(chain: str) -> str:
    """The hash of a chain's name, which may be of any length."""
    return hashlib.sha256(chain.encode(errors="surrogatepass")).hexdigest()


def _before(
    created: InstrumentedAttribute[datetime], moment: datetime,
    id: InstrumentedAttribute[Any], name: object,
) -> ColumnElement[bool]:  # fmt: skip
    """The rows that come after one in a list with the newest first."""
    return or_(created < moment, and_(created == moment, id < name))
