"""The one store: jobs, which workers claim, and tuned kernels, which outlive them."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Result, and_, delete, func, or_, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute, configure_mappers, defer, sessionmaker

from db import again
from db.again import gave_up
from db.engine import connect, upgrade, writing
from db.models import LIVE, STATES, Job, KernelRow, KernelUse, Probed

if TYPE_CHECKING:
    from mcfuser.device import Device
    from mcfuser.tune.key import CacheKey
    from mcfuser.tune.tuned import Tuned, Use

log = logging.getLogger(__name__)

StorageError = SQLAlchemyError
"""What every method raises where the database does not answer."""

_ALIKE = 100  # kernels of one chain that are looked at to tell what has changed
_RACES = 10  # how often a row may be lost to another process before that is an error
_NO_CLAIM: Mapping[str, Any] = {"worker": None, "claim": None, "lease": None}


@dataclass(frozen=True, slots=True)
class Order:
    """What a job is to do. `work` hashes everything that its result depends on."""

    work: str
    model: str
    model_bytes: int
    device: str
    options: dict[str, Any]


class Storage:
    """Jobs and kernels in one database; any number of processes may hold one each.

    A job is taken by compare-and-set: the row changes only where it still is what was read. The
    worker that took it holds a claim, which it must renew; every write names the claim, and gives
    False where the claim has been lost (the job was cancelled, or the lease ran out).
    """

    def __init__(
        self, url: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC), attempts: int = 3
    ) -> None:
        """Opens the database and brings it up to date; raises InputError where it cannot."""
        engine = connect(url)
        upgrade(engine)
        configure_mappers()  # 3 ms that the first of the short reads would take
        self._engine = engine
        self._read = sessionmaker(engine, expire_on_commit=False)
        self._write = sessionmaker(writing(engine), expire_on_commit=False)
        self._now = clock
        self._attempts = attempts

    def close(self) -> None:
        self._engine.dispose()

    # --- jobs: from outside -----------------------------------------------------------------

    def submit(self, order: Order) -> tuple[Job, bool]:
        """The live job that does this work, and whether it is new."""
        for _ in range(_RACES):
            if (found := self.live(order.work)) is not None:
                return found, False
            job = Job(
                id=uuid4(), work=order.work, model=order.model, model_bytes=order.model_bytes,
                device=order.device, options=order.options, created=self._now(),
            )  # fmt: skip
            try:
                with self._write.begin() as session:
                    session.add(job)
                return job, True
            except IntegrityError:
                continue  # another process was first; its job is ours
        raise RuntimeError(f"the work {order.work} was submitted and ended {_RACES} times over")

    def live(self, work: str) -> Job | None:
        """The job of that work which is queued, running or done."""
        with self._read() as session:
            return session.scalar(select(Job).where(Job.work == work, Job.state.in_(LIVE)))

    def job(self, id: UUID) -> Job | None:
        with self._read() as session:
            return session.get(Job, id)

    def jobs(
        self, state: str | None = None, limit: int = 50, after: UUID | None = None
    ) -> Sequence[Job]:
        """The newest first, without their reports; `after` is the last one of the page before."""
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

    def cancel(self, id: UUID) -> bool:
        """Ends a job that is queued or running; its worker learns of it at its next renewal."""
        return self._set(
            (Job.id == id, Job.state.in_(("queued", "running"))),
            state="cancelled", finished=self._now(), **_NO_CLAIM,
        )  # fmt: skip

    def requeue(self, id: UUID) -> bool:
        """Does a done job again, its module having been lost."""
        return self._set(
            (Job.id == id, Job.state == "done"),
            state="queued", attempts=0, interrupted=0, due=None, stage="", done=0, total=0,
            started=None, finished=None, module=None, module_bytes=None, report=None,
        )  # fmt: skip

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with self._read() as session:
            rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
            return dict.fromkeys(STATES, 0) | dict(rows.all())

    # --- jobs: from a worker ----------------------------------------------------------------

    def claim(self, worker: str, lease: float) -> Job | None:
        """The oldest job that waits and is due, now this worker's for `lease` seconds; or None."""
        self._take_back(Job.lease < self._now(), wait=False)  # the lease was the wait
        for _ in range(_RACES):
            with self._read() as session:
                waiting = session.scalar(
                    select(Job.id)
                    .where(Job.state == "queued", _is_due(self._now()))
                    .order_by(Job.created, Job.id)
                    .limit(1)
                )
            if waiting is None:
                return None
            claim = uuid4()
            taken = self._set(
                (Job.id == waiting, Job.state == "queued"),
                state="running", due=None, worker=worker, claim=claim, lease=self._later(lease),
                attempts=Job.attempts + 1, started=self._now(), stage="", done=0, total=0,
            )  # fmt: skip
            job = self.job(waiting) if taken else None
            if job is not None and job.claim == claim:  # not cancelled in between
                return job
        return None  # others take jobs faster than this one: it asks again

    def renew(self, claim: UUID, lease: float, stage: str, done: int, total: int) -> bool:
        """Says that the work goes on, and how far it is."""
        plain = stage.replace("\0", "")[:200]  # PostgreSQL keeps no NUL
        return self._set(
            (Job.claim == claim,), lease=self._later(lease), stage=plain, done=done,
            total=total,
        )  # fmt: skip

    def held(self, claim: UUID) -> bool:
        """The claim still is the job's."""
        with self._read() as session:
            return session.scalar(select(Job.id).where(Job.claim == claim)) is not None

    def finish(self, claim: UUID, module: str, module_bytes: int, report: dict[str, Any]) -> bool:
        return self._set(
            (Job.claim == claim,), state="done", finished=self._now(), module=module,
            module_bytes=module_bytes, report=report, stage="", **_NO_CLAIM,
        )  # fmt: skip

    def fail(self, claim: UUID, problem: Mapping[str, Any]) -> bool:
        return self._set((Job.claim == claim,), **self._failed(problem))

    def retry(self, claim: UUID) -> bool:
        """Puts the job back in the queue, due after a while (db.again.delay), or fails it
        where this was the last attempt."""
        return self._take_back(Job.claim == claim) > 0

    def give_back(self, claim: UUID) -> bool:
        """Puts the job back as if it had never been taken: the worker is asked to stop."""
        return self.postpone(claim, 0.0, "")

    def postpone(self, claim: UUID, seconds: float, stage: str) -> bool:
        """Puts the job back as if it had never been taken, due in so many seconds; `stage` says
        what it waits for."""
        return self._set(
            (Job.claim == claim,), state="queued", attempts=Job.attempts - 1, stage=stage[:200],
            due=self._later(seconds) if seconds else None, **_NO_CLAIM,
        )  # fmt: skip

    def release(self, worker: str, blame: bool = True) -> int:
        """Takes back what a worker that is known to be dead held; gives how many jobs that were.

        With `blame` the attempt counts: the job may be what killed the worker.
        """
        if blame:
            return self._take_back(Job.worker == worker)
        return sum(self.give_back(claim) for claim in self._claims(worker))

    def interrupted(self, worker: str) -> int:
        """Takes back what a worker held when its server was ended; gives how many jobs that were.

        That is no failed attempt; a job to which it happens again and again is given up.
        """
        held = and_(Job.state == "running", Job.worker == worker)
        spent = update(Job).where(held, Job.interrupted >= again.INTERRUPTIONS)
        problem = again.interrupted(again.INTERRUPTIONS)
        back = update(Job).where(held).values(
            state="queued", attempts=Job.attempts - 1, interrupted=Job.interrupted + 1, **_NO_CLAIM
        )  # fmt: skip
        with self._write.begin() as session:
            ended = _count(session.execute(spent.values(**self._failed(problem))))
            return ended + _count(session.execute(back))

    def _claims(self, worker: str) -> Sequence[UUID]:
        with self._read() as session:
            query = select(Job.claim).where(Job.worker == worker, Job.state == "running")
            return [claim for claim in session.scalars(query) if claim is not None]

    def _take_back(self, lost: ColumnElement[bool], wait: bool = True) -> int:
        """Requeues running jobs, or fails those that have been tried often enough."""
        lost = and_(Job.state == "running", lost)
        with self._read() as session:
            if session.scalar(select(Job.id).where(lost).limit(1)) is None:
                return 0  # workers ask this all day: only a change takes SQLite's lock
        with self._write.begin() as session:
            spent = update(Job).where(lost, Job.attempts >= self._attempts)
            failed = self._failed(gave_up(self._attempts))
            count = _count(session.execute(spent.values(**failed)))
            for tried in range(1, self._attempts):
                due = self._later(again.delay(tried)) if wait else None
                back = update(Job).where(lost, Job.attempts == tried)
                values = {"state": "queued", "due": due, **_NO_CLAIM}
                count += _count(session.execute(back.values(**values)))
            return count

    def _failed(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        return {"state": "failed", "finished": self._now(), "problem": dict(problem), **_NO_CLAIM}

    def _set(self, where: Sequence[ColumnElement[bool]], **values: Any) -> bool:
        with self._write.begin() as session:
            return _count(session.execute(update(Job).where(*where).values(**values))) > 0

    def _later(self, seconds: float) -> datetime:
        return self._now() + timedelta(seconds=seconds)

    # --- kernels ----------------------------------------------------------------------------

    def get(self, key: str) -> Tuned | None:
        """The tuned kernel of that key; one that cannot be read is logged and missing."""
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
        """Keeps a tuned kernel; of two with one key the later stays."""
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
                return
            except IntegrityError:
                continue  # another process put it in between: now it is there to be replaced
        raise RuntimeError(f"kernel {tuned.key} cannot be kept: others remove it all the time")

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        """The keys of the kernels that are kept for a chain; those that cannot be read are left
        out."""
        from mcfuser.tune.key import CacheKey

        query = select(KernelRow.made).where(
            KernelRow.chain_key == chain_key, KernelRow.made.is_not(None)
        )
        with self._read() as session:
            found = session.scalars(query.order_by(KernelRow.created.desc()).limit(_ALIKE)).all()
        read: list[CacheKey] = []
        for made in found:
            with suppress(KeyError, TypeError, ValueError):
                read.append(CacheKey.from_json(made or {}))
        return read

    def note(self, uses: Iterable[Use]) -> None:
        """Keeps which kernels the chains of a compiled model have."""
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

    def kernel(self, key: str) -> dict[str, Any] | None:
        """The whole document of a kernel, its binary in base64."""
        query = select(KernelRow.document, KernelRow.binary).where(KernelRow.key == key)
        with self._read() as session:
            try:
                found = session.execute(query).one_or_none()
            except (ValueError, RecursionError) as error:  # the document is no JSON
                log.warning("kernel %s is damaged: %s", key, error)
                return None
        if found is None:
            return None
        if not isinstance(found.document, dict):
            log.warning("kernel %s is damaged: its document is no object", key)
            return None
        return {**found.document, "binary": base64.b64encode(found.binary).decode()}

    def kernels(
        self, device: str | None = None, chain: str | None = None, limit: int = 50,
        after: str | None = None,
    ) -> Sequence[KernelRow]:  # fmt: skip
        """The newest first, without documents and binaries; `chain` is the name or the key of a
        chain, that a kernel was tuned for or that a compiled model uses it in."""
        unread = (
            defer(KernelRow.document, raiseload=True),
            defer(KernelRow.binary, raiseload=True),
        )
        query = select(KernelRow).options(*unread)
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

    def kernel_count(self) -> int:
        with self._read() as session:
            return session.scalar(select(func.count()).select_from(KernelRow)) or 0

    # --- devices ----------------------------------------------------------------------------

    def probed(self, device: Device) -> Device:
        """The device with the readings of its last probe, if there was one."""
        with self._read() as session:
            found = session.get(Probed, device.name)
        if found is None:
            return device
        readings = tuple((str(n), float(v)) for n, v in sorted(found.readings.items()))
        return replace(device, readings=readings)

    def keep_probe(
        self, device: str, readings: Mapping[str, float], conditions: Mapping[str, Any]
    ) -> None:
        """Keeps a device's readings in place of those before."""
        probed = Probed(
            device=device, readings=dict(readings), conditions=dict(conditions),
            created=self._now(),
        )  # fmt: skip
        with self._write.begin() as session:
            session.merge(probed)


def _is_due(now: datetime) -> ColumnElement[bool]:
    return or_(Job.due.is_(None), Job.due <= now)


def _place(chain: str) -> str:
    """A chain's name, of any length, as a column holds it."""
    return hashlib.sha256(chain.encode(errors="surrogatepass")).hexdigest()


def _before(
    created: InstrumentedAttribute[datetime], moment: datetime,
    id: InstrumentedAttribute[Any], name: object,
) -> ColumnElement[bool]:  # fmt: skip
    """What comes later in a list of the newest first."""
    return or_(created < moment, and_(created == moment, id < name))


def _count(result: Result[Any]) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount
