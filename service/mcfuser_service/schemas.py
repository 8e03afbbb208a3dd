"""The schemas of requests and responses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from mcfuser.arguments.duration import LONGEST, TIME, seconds
from mcfuser.arguments.in_place import check_in_place
from mcfuser.arguments.shapes import ranged_shapes
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.extents import BUCKETS, MOST, InputShapes
from mcfuser.tune import tuned
from mcfuser.tune.progress import Progress
from mcfuser_db import Job
from mcfuser_service.queries import printable

JobState = Literal["queued", "running", "done", "failed", "cancelled"]


def _device(name: str) -> str:
    # The CPU is probed by workers: that takes seconds and imports tvm.
    return name if name == HOST else device_named(name).name


def _shapes(words: list[str]) -> list[str]:
    ranged_shapes(words)
    return sorted(words)


def _seconds(words: object) -> object:
    return seconds(words, most=LONGEST) if isinstance(words, str) else words


Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"type": "string", "pattern": TIME}),
]
"""Seconds, which are written as 60, 60s, 5m or 1h."""


class JobOptions(BaseModel):
    """How to compile a model: what a job keeps of the query of POST /v1/jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Annotated[str, Field(max_length=100), AfterValidator(_device)] = HOST
    shape: Annotated[list[str], AfterValidator(_shapes)] = Field(
        default=[],
        description="input=1x128, once for each input with a dynamic dimension; input=1x16..512 "
        "with a range, for a module that takes every extent in it; batch=1 for all dimensions that "
        "the model calls batch",
    )
    buckets: int = Field(
        default=BUCKETS,
        ge=1,
        le=MOST,
        description="the most shapes that a model with ranges is compiled for",
    )
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    trials: int | None = Field(default=None, ge=1, le=1_000_000)
    timeout: Duration | None = Field(
        default=None,
        gt=0,
        le=LONGEST,
        description="for the whole compile: 60, 60s, 5m or 1h; without it tuning alone is limited",
    )
    precision: Literal["fp16", "bf16", "tf32"] | None = Field(
        default=None,
        description="fp16 or bf16: narrow products, weights and values between the kernels of a "
        "float32 model; tf32: a GPU may round what it multiplies; without it the model's own types",
    )
    in_place: Annotated[list[str], AfterValidator(check_in_place)] = Field(
        default=[],
        description="past_key=present_key writes an output into the memory of an input, once for "
        "each of them, or past.*=present.* for many",
    )
    retune: bool = Field(
        default=False, description="search kept kernels again; always a job of its own"
    )

    @property
    def shapes(self) -> InputShapes:
        return ranged_shapes(self.shape)

    @property
    def tuning(self) -> tuned.TuneOptions:
        """The options of the tuner."""
        asked = tuned.TuneOptions(seed=self.seed, trials=self.trials, retune=self.retune)
        return replace(asked, timeout=self.timeout) if self.timeout is not None else asked


class PostQuery(JobOptions):
    """The query of POST /v1/jobs: how to compile the model, and what is to become of the job."""

    name: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)] | None = (
        Field(default=None, description="of the job, for people")
    )
    priority: int = Field(
        default=0, ge=-100, le=100, description="of the queued jobs the highest is done first"
    )
    reuse: Literal["auto", "only", "never"] = Field(
        default="auto",
        description="auto: equal work is one job; only: the job that is there, and no new one; "
        "never: a job of its own, which uses the kernels that are kept",
    )
    webhook: Annotated[str, Field(max_length=1000), AfterValidator(printable)] | None = Field(
        default=None, description="the URL that is told when the job is over"
    )

    @field_validator("reuse")
    @classmethod
    def _shared(cls, reuse: str, others: ValidationInfo) -> str:
        if reuse == "only" and others.data.get("retune"):
            raise ValueError("with retune=true a job is always one of its own; leave 'only' away")
        return reuse

    @property
    def options(self) -> JobOptions:
        """What the job keeps, and what its result depends on."""
        return JobOptions(**{name: getattr(self, name) for name in JobOptions.model_fields})


class ChainOut(BaseModel):
    """A chain of the model that is compiled: its number, from 1, among the distinct ones."""

    number: int
    of: int
    name: str


class ProgressOut(BaseModel):
    """How far a running job is. Of the candidates of the search at hand, `compiled` have a kernel,
    `measured` were timed (or tried, where nothing can be measured), and `failed` were not built, do
    not fit the device, or are wrong."""

    stage: str
    chain: ChainOut | None
    candidates: dict[Literal["total", "compiled", "measured", "failed"], int]
    best_seconds: float | None = Field(
        description="the time of the fastest candidate of this search"
    )
    seconds_left: float | None = Field(description="until the module is built, as estimated")

    @classmethod
    def of(cls, job: Job, moment: datetime) -> ProgressOut | None:
        """The progress of a job at a moment; None where it is not running or has not told any."""
        if job.progress is None:
            return None
        told = Progress.from_json(job.progress)
        chain = told.chain
        left = (job.expected - moment).total_seconds() if job.expected else None
        return cls(
            stage=told.stage,
            chain=ChainOut(number=chain.number, of=chain.of, name=chain.name) if chain else None,
            candidates={
                "total": told.total,
                "compiled": told.compiled,
                "measured": told.done,
                "failed": told.failed,
            },
            best_seconds=told.best,
            seconds_left=round(max(0.0, left), 1) if left is not None else None,
        )


class JobOut(BaseModel):
    """A job, as far as it is. `candidates` count those of the present stage."""

    id: UUID
    name: str | None = Field(default=None, description="for people")
    priority: int = 0
    version: int = Field(description="grows with every change; the id of the job's events")
    state: JobState
    stage: str
    candidates: dict[Literal["done", "total"], int]
    progress: ProgressOut | None = Field(default=None, description="of a running job")
    device: str
    options: dict[str, Any]
    model: dict[Literal["sha256", "bytes"], str | int]
    attempts: int
    due: datetime | None = Field(default=None, description="a queued job waits until then")
    created: datetime
    started: datetime | None
    finished: datetime | None
    removed: datetime | None = Field(
        default=None, description="when the module, the report and the log were removed"
    )
    module: dict[Literal["sha256", "bytes", "href"], str | int] | None = None
    attestation: dict[Literal["href"], str] | None = Field(
        default=None,
        description="of a done job that was signed, where one job is asked for",
    )
    report: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    posted_by: str | None = Field(
        default=None, description="the name of the key that posted it first; for admins"
    )
    cached: bool = Field(default=False, description="the job was done before this request")

    @classmethod
    def of(
        cls,
        job: Job,
        whole: bool = True,
        cached: bool = False,
        posted_by: str | None = None,
        signed: bool = False,
        moment: datetime | None = None,
    ) -> JobOut:
        """A job, with its report where it is `whole`; its times are counted from a moment, which is
        now where it is None."""
        module = None
        if job.module is not None:
            href = f"/v1/jobs/{job.id}/module"
            module = {"sha256": job.module, "bytes": job.module_bytes, "href": href}
        return cls.model_validate(
            {
                "id": job.id,
                "name": job.name,
                "priority": job.priority,
                "version": job.version,
                "state": job.state,
                "stage": job.stage,
                "candidates": {"done": job.done, "total": job.total},
                "progress": ProgressOut.of(job, moment or datetime.now(UTC)),
                "device": job.device,
                "options": job.options,
                "model": {"sha256": job.model, "bytes": job.model_bytes},
                "attempts": job.attempts,
                "due": job.due,
                "created": job.created,
                "started": job.started,
                "finished": job.finished,
                "removed": job.removed,
                "module": module,
                "attestation": {"href": f"/v1/jobs/{job.id}/attestation"} if signed else None,
                "problem": job.problem,
                "report": job.report if whole else None,
                "posted_by": posted_by,
                "cached": cached,
            }
        )


class JobPage(BaseModel):
    """Some of the jobs, the newest first; `next` is the address of those that follow, if any."""

    items: list[JobOut]
    next: str | None


class KernelOut(BaseModel):
    """A tuned kernel; times in seconds. `dtype` is the type of its first tensor, empty where that
    was not kept."""

    model_config = ConfigDict(from_attributes=True)

    key: str
    chain: str
    chain_key: str
    device: str
    dtype: str
    expression: str
    measured: float | None
    predicted: float
    created: datetime


class KernelPage(BaseModel):
    """Some of the kernels, as a page of jobs. A page of a search may have few or none, although
    others follow: a search looks at some thousand kernels at a time."""

    items: list[KernelOut]
    next: str | None


class KernelAgeOut(BaseModel):
    """How old a kept kernel is on this server, and why, in words: one that is outdated is not used,
    one that is stale is used and measured again."""

    model_config = ConfigDict(from_attributes=True)

    key: str
    age: Literal["current", "stale", "outdated"]
    reasons: list[str]


class KernelAges(BaseModel):
    """The ages of the kernels that were asked for and are kept."""

    items: list[KernelAgeOut]


class CheckedKernelOut(BaseModel):
    """Whether a kept record is sound: as it was written, and used. A stale one is used and measured
    again, an outdated one is not used, and a damaged one cannot be read; `reasons` say why."""

    key: str
    chain: str
    device: str
    state: Literal["sound", "stale", "outdated", "damaged", "changed"]
    reasons: list[str]


class CheckedKernels(BaseModel):
    """Some of the kernels, as a page of them."""

    items: list[CheckedKernelOut]
    next: str | None


class PrunedKernels(BaseModel):
    """The keys of kernels, and of interrupted searches whose candidates were kept, that were
    `removed`, or would be. `next` is the address for the kernels that were not looked at."""

    kernels: list[str]
    searches: list[str]
    removed: bool
    next: str | None


class RooflineKernel(BaseModel):
    """A kernel under the roofline: its chain's arithmetic operations, the bytes of its inputs and
    outputs, each moved once, and its seconds, which are predicted where it was not `measured`."""

    key: str
    chain: str
    operations: int
    bytes: int
    seconds: float
    measured: bool


class RooflineOut(BaseModel):
    """Kernels of one device, the one that was asked for first. `peak` are the most operations in a
    second on that kernel's types, `bandwidth` the most bytes; null where they are not known."""

    device: str
    peak: float | None
    bandwidth: float | None
    kernels: list[RooflineKernel]


class CandidateOut(BaseModel):
    """A candidate that a search measured: seconds and relative error, or why it failed; and the
    seconds that the model predicted."""

    expression: str
    tiles: dict[str, int]
    split: str | None
    parts: int
    shifts: bool
    lowering: dict[str, Any]
    predicted: float | None
    measured: float | None
    error: float | None
    failed: str | None


class CandidatePage(BaseModel):
    """Some of the candidates of a search, in the order in which they were measured."""

    items: list[CandidateOut]
    next: str | None


class NearKernelOut(BaseModel):
    """A kept kernel of the chain, and in what it differs from one that is made here, in words."""

    key: str
    device: str
    age: Literal["current", "stale", "outdated"]
    reasons: list[str]


class LookupOut(BaseModel):
    """Which kept kernel a chain uses on a device; `asked` is the cache key, `candidates` the number
    of those that were measured under it, and `sentences` say all of it."""

    answer: Literal["hit", "stale", "miss"]
    asked: dict[str, Any]
    kernel: str | None
    candidates: int
    nearest: list[NearKernelOut]
    sentences: list[str]


class DeviceOut(BaseModel):
    """A device that models can be compiled for; rates per second, sizes in bytes.

    Of the CPU only the name is known here: its workers probe it.
    """

    name: str
    kind: str
    arch: str | None = None
    units: int | None = None
    peak: dict[str, float] | None = None
    bandwidth: float | None = None
    fast: int | None = None


class Health(BaseModel):
    """How the service is. `workers` are those of this server that are alive, those that it should
    have, and those that are alive on any machine. Where the database is silent, only this server's
    are known, and no jobs."""

    status: Literal["ok", "degraded"]
    version: str
    database: Literal["ok", "silent"]
    workers: dict[Literal["alive", "wanted", "everywhere"], int]
    jobs: dict[str, int]
    oldest_queued_seconds: float | None


class Alive(BaseModel):
    """The answer of a probe that has succeeded."""

    status: Literal["ok"] = "ok"
