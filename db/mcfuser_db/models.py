"""The tables of the database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    Uuid,
    and_,
    false,
    func,
    literal_column,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

STATES = ("queued", "running", "done", "failed", "cancelled")
LIVE = ("queued", "running", "done")  # at most one job of equal work is in one of these states
OVER = ("done", "failed", "cancelled")
LABEL = 400  # characters of a kernel's label
LONGEST_INDEXED = 100
"""Characters of a chain's name that are in an index: names may be of any length."""
_KEPT = text("finished IS NOT NULL AND removed IS NULL")
_REMOVED = text("removed IS NOT NULL")
_UNREMOVED = text("removed IS NULL")
_WAITING = text("state = 'waiting'")
_VALID = text("revoked IS NULL")
_LIVE = text(f"state IN ({', '.join(repr(s) for s in LIVE)})")


class Instant(TypeDecorator[datetime]):
    """A time in UTC. SQLite keeps no time zone; it is added when a value is read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        float: Double(),
        datetime: Instant(),
        UUID: Uuid(),
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }


class Job(Base):
    """A model to compile. Rows are used outside of sessions, as snapshots.

    `work` is a hash of everything that the result depends on: equal work is one job. `claim` is new
    each time that a worker takes the job. Only the holder of the claim may change the job, and only
    until `lease`, unless it renews it. A queued job waits until `due`. `interrupted` counts how
    often its server was ended while it ran; such attempts do not count as failed.

    Of the jobs that are due, those of the highest `priority` are claimed first. `version` grows
    with every change that others can see. `progress` is that of a running job
    (mcfuser.tune.progress.Progress), and `expected` the estimated end. `removed` is when the
    results of a job that is over were removed, null while they are kept. `attestation` is the
    signed statement of its module, null where there is none; Storage.attestation alone reads it.

    `api_key` is the id of the key with which the job was posted first, null where that was done
    without one; it is `shared` where the same work was posted with another key, or without one,
    since.
    """

    __tablename__ = "jobs"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    work: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(64))
    model_bytes: Mapped[int] = mapped_column(BigInteger)
    device: Mapped[str] = mapped_column(String(100))
    options: Mapped[dict[str, Any]]
    name: Mapped[str | None] = mapped_column(String(200))
    priority: Mapped[int] = mapped_column(default=0, server_default="0")
    version: Mapped[int] = mapped_column(default=1, server_default="1")
    state: Mapped[str] = mapped_column(String(16), default="queued")
    stage: Mapped[str] = mapped_column(String(200), default="")
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int] = mapped_column(default=0)
    progress: Mapped[dict[str, Any] | None]
    expected: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    interrupted: Mapped[int] = mapped_column(default=0, server_default="0")
    due: Mapped[datetime | None]
    worker: Mapped[str | None] = mapped_column(String(200))
    claim: Mapped[UUID | None]
    lease: Mapped[datetime | None]
    created: Mapped[datetime]
    started: Mapped[datetime | None]
    finished: Mapped[datetime | None]
    module: Mapped[str | None] = mapped_column(String(64))
    module_bytes: Mapped[int | None] = mapped_column(BigInteger)
    report: Mapped[dict[str, Any] | None]
    problem: Mapped[dict[str, Any] | None]
    removed: Mapped[datetime | None]
    attestation: Mapped[str | None] = mapped_column(Text, deferred=True, deferred_raiseload=True)
    api_key: Mapped[str | None] = mapped_column(String(12))
    shared: Mapped[bool] = mapped_column(default=False, server_default=false())

    __table_args__ = (
        CheckConstraint(f"state IN ({', '.join(repr(s) for s in STATES)})", name="jobs_state"),
        Index("jobs_work_live", "work", unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE),
        Index("jobs_state_created", "state", "created", "id"),
        Index("jobs_created", "created", "id"),
        Index("jobs_claim", "claim"),
        Index("jobs_queue", "state", "priority", "created", "id", "due"),
        Index("jobs_kept", "finished", "id", sqlite_where=_KEPT, postgresql_where=_KEPT),
        Index("jobs_removed", "removed", "id", sqlite_where=_REMOVED, postgresql_where=_REMOVED),
        Index("jobs_model", "model", sqlite_where=_UNREMOVED, postgresql_where=_UNREMOVED),
        Index("jobs_module", "module"),
        Index("jobs_api_key", "api_key", "state"),
    )


class JobLine(Base):
    """A line of a job's log; its numbers count from 1."""

    __tablename__ = "job_lines"

    job: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    moment: Mapped[datetime]
    words: Mapped[str] = mapped_column(Text)


class JobEvent(Base):
    """A job as it was at one of its versions (mcfuser_db.job_events): `document` is JSON and has
    what changes of a job, `total` are the bytes of its events from the first one to this."""

    __tablename__ = "job_events"

    job: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    moment: Mapped[datetime]
    total: Mapped[int] = mapped_column(BigInteger)
    document: Mapped[str] = mapped_column(Text)

    __table_args__ = ({"sqlite_with_rowid": False},)


class IdempotencyKey(Base):
    """A key that a client has given to a post, and the job that the post was answered with.

    `key` is the SHA-256 of the client's key, `request` that of the posted model and its options.
    """

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    request: Mapped[str] = mapped_column(String(64))
    job: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    created: Mapped[datetime]

    __table_args__ = (
        Index("idempotency_keys_created", "created"),
        Index("idempotency_keys_job", "job"),
    )


class Webhook(Base):
    """An address that is told of a job's end, once the job is over.

    `state` is "armed" until the job is over, then "waiting" (for the attempt that is due) and in
    the end "delivered" or "given up".
    """

    __tablename__ = "webhooks"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    job: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    url: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16), default="armed")
    attempts: Mapped[int] = mapped_column(default=0)
    due: Mapped[datetime | None]
    created: Mapped[datetime]

    __table_args__ = (
        Index("webhooks_job", "job"),
        Index("webhooks_waiting", "due", sqlite_where=_WAITING, postgresql_where=_WAITING),
    )


class ApiKey(Base):
    """A key that requests are sent with. Rows are used outside of sessions, as snapshots.

    `hash` is that of its text (mcfuser_db.key_text), which is kept nowhere. Limits that are null
    are none: `requests` in `period` seconds, `queued` jobs at once, `disk` bytes of models and
    modules. `used` is when it was last used, to the minute.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(12), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]]
    requests: Mapped[int | None]
    period: Mapped[float | None]
    queued: Mapped[int | None]
    disk: Mapped[int | None] = mapped_column(BigInteger)
    created: Mapped[datetime]
    expires: Mapped[datetime | None]
    revoked: Mapped[datetime | None]
    used: Mapped[datetime | None]

    __table_args__ = (
        Index(
            "api_keys_name", "name", unique=True, sqlite_where=_VALID, postgresql_where=_VALID
        ),
    )  # fmt: skip


class KeyFile(Base):
    """A model or module of the jobs of an API key: its bytes, and how many of these jobs have it.

    Triggers keep it, and the sum of the bytes in the tally "disk." and the key's id (migration
    0013).
    """

    __tablename__ = "key_files"

    api_key: Mapped[str] = mapped_column(String(12), primary_key=True)
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    jobs: Mapped[int]

    __table_args__ = ({"sqlite_with_rowid": False},)


class KernelRow(Base):
    """A tuned kernel: columns for what is queried, its document (mcfuser.tune.tuned) and its
    binary.

    `made` is the cache key with its fields (mcfuser.tune.key), null where none was kept. `dtype`,
    `seconds` and `label` are those of mcfuser_db.kernel_search, which orders and searches by them.
    """

    __tablename__ = "kernels"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    chain: Mapped[str] = mapped_column(Text)
    chain_key: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(100))
    expression: Mapped[str] = mapped_column(Text)
    measured: Mapped[float | None]
    predicted: Mapped[float]
    created: Mapped[datetime]
    made: Mapped[dict[str, Any] | None]
    document: Mapped[dict[str, Any]]
    binary: Mapped[bytes] = mapped_column(LargeBinary)
    dtype: Mapped[str] = mapped_column(String(100), default="", server_default="")
    seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    label: Mapped[str] = mapped_column(String(LABEL), default="", server_default="")

    __table_args__ = (
        Index("kernels_chain_key", "chain_key", "created", "key"),
        Index("kernels_chain", func.substr(chain, 1, LONGEST_INDEXED), "created", "key", "device"),
        Index("kernels_device_created", "device", "created", "key"),
        Index("kernels_created", "created", "key"),
        # a search walks one of these without reading the rows
        Index("kernels_by_created", "created", "key", "label"),
        Index("kernels_by_chain", "label", "key"),
        Index("kernels_by_device", "device", "label", "key"),
        Index("kernels_by_dtype", "dtype", "label", "key"),
        Index("kernels_by_time", "seconds", "key", "label"),
    )


class KernelUse(Base):
    """A kernel that a chain of some compiled model uses, or that was compared for it.

    `place` is the SHA-256 of the chain's name in the model: names may be of any length. `created`
    and `device` are those of the kernel, null while it is not kept: lists are read in the order of
    the first, and filtered by the second.
    """

    __tablename__ = "kernel_uses"

    chain_key: Mapped[str] = mapped_column(String(64), primary_key=True)
    place: Mapped[str] = mapped_column(String(64), primary_key=True)
    kernel: Mapped[str] = mapped_column(String(64), primary_key=True)
    created: Mapped[datetime | None]
    device: Mapped[str | None] = mapped_column(String(100))

    __table_args__ = (
        Index("kernel_uses_place", "place", "created", "kernel", "device"),
        Index("kernel_uses_kernel", "kernel"),
    )


class Probed(Base):
    """The readings of a device's last probe (mcfuser.backends.cuda.probe), and the state of the
    device meanwhile; or the constants that were fitted for it (mcfuser_db.constants)."""

    __tablename__ = "probes"

    device: Mapped[str] = mapped_column(String(100), primary_key=True)
    readings: Mapped[dict[str, Any]]
    conditions: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class CandidateBatch(Base):
    """Some of the candidates that searches measured under the cache key with digest `key`.

    `document` is theirs as JSON (mcfuser.tune.tried), `count` their number. A candidate may be in
    several batches; its last result holds. A batch is `open` until its search has ended with a
    kernel.
    """

    __tablename__ = "candidates"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True
    )
    key: Mapped[str] = mapped_column(String(64))
    chain_key: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(100))
    created: Mapped[datetime]
    count: Mapped[int]
    open: Mapped[bool] = mapped_column(default=True, server_default=false())
    document: Mapped[dict[str, Any]]

    __table_args__ = (
        Index("candidates_key", "key", "device", "created", "count"),
        Index("candidates_chain_key", "chain_key"),
        Index(
            "candidates_open",
            "key",
            "device",
            "created",
            "count",
            sqlite_where=text("open = 1"),
            postgresql_where=text("open"),
        ),
    )


class WorkerBeat(Base):
    """A worker process, on any machine, that was alive at `seen` (mcfuser_db.beats)."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    revision: Mapped[str] = mapped_column(String(100))
    started: Mapped[datetime]
    seen: Mapped[datetime]

    __table_args__ = (Index("workers_seen", "seen"),)


class FigureRow(Base):
    """How often something has happened, and the seconds that it took in all (mcfuser_db.figures).

    `bound` is the upper bound of a histogram's bucket, and empty where there are none.
    """

    __tablename__ = "figures"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    label: Mapped[str] = mapped_column(String(40), primary_key=True)
    bound: Mapped[str] = mapped_column(String(16), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)
    total: Mapped[float]


class Tally(Base):
    """What there is, counted by triggers in the transactions that change it (migration 0010): the
    sum of the numbers with the same `what`, which is "kernels", "jobs." and a state, or "disk." and
    the id of an API key (migration 0013).

    In SQLite, where one transaction writes at a time, it is one row for each. In PostgreSQL a
    transaction adds a row with what it has added or removed, so that none waits for another; every
    now and then one puts the rows together that are there.
    """

    __tablename__ = "tallies"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True
    )
    what: Mapped[str] = mapped_column(String(20))
    number: Mapped[int] = mapped_column(BigInteger)


# Conditions of partial indexes. SQLite uses such an index only where the query has the very words,
# not parameters in their place.
IS_LIVE = Job.state.in_([literal_column(f"'{state}'") for state in LIVE])
IS_KEPT = and_(Job.finished.is_not(None), Job.removed.is_(None))
IS_WAITING = Webhook.state == literal_column("'waiting'")
