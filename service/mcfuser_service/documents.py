"""The documented fields of reports and stored kernels; later versions may have more.

Documents are served as they were kept, so these models only describe them.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from mcfuser.finite import finite


def served(value: Any) -> bytes:
    """A kept document as it is served, in JSON: equal bytes for equal documents, so that they can
    be signed."""
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False).encode()


def as_json(value: BaseModel) -> Response:
    """A value as a response. A route that returns the value has it validated again, and that in a
    thread of its own: under load each one more is one more wait for a core."""
    return Response(value.model_dump_json(), media_type="application/json")


class Document(BaseModel):
    model_config = ConfigDict(extra="allow")


class FieldError(BaseModel):
    """A part of the request that cannot be used."""

    model_config = ConfigDict(populate_by_name=True)

    where: str = Field(alias="in", description="query, path, header or body")
    name: str
    detail: str


class Problem(BaseModel):
    """RFC 9457 problem details, the form of every error response."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[FieldError] | None = Field(default=None, description="of a bad-option, each")


class ChainDocument(Document):
    """A chain, in the form of a chain file."""

    name: str
    axes: dict[str, int | list[int]]
    tensors: dict[str, dict[str, Any]]
    operators: list[str]
    outputs: list[str]
    precision: Literal["float32", "tf32"] = "float32"


class KernelOccupancy(Document):
    """How many blocks of a kernel run on one multiprocessor at a time: `blocks` of `threads`
    threads, bounded by its registers, its shared memory, the most threads or the most blocks that
    the multiprocessor holds; their threads are `fraction` of the most."""

    threads: int
    blocks: int
    bound: Literal["registers", "shared memory", "threads", "blocks"]
    fraction: float


class KernelDocument(Document):
    """A tuned kernel, whole. Times are in seconds; `binary` is in base64. `occupancy` is null for a
    CPU, and where the record does not tell what the kernel needs; it is not kept, and no part of
    the `checksum`."""

    model_config = ConfigDict(title="Kernel")

    key: str
    chain: ChainDocument
    device: str
    expression: str
    tiles: dict[str, int]
    lowering: dict[str, Any]
    source: str
    binary: str
    predicted: float | None
    measured: float | None
    error: float | None
    stages: dict[str, int]
    trials: int
    split: str | None
    parts: int
    failed: dict[str, int]
    resources: dict[str, float]
    versions: dict[str, str]
    conditions: dict[str, Any]
    occupancy: KernelOccupancy | None = None


class ReportWork(Document):
    """The arithmetic operations of a kernel, and the bytes of its inputs and outputs, each moved
    once; and the most operations and bytes that the device does in a second: its place under the
    roofline."""

    operations: int
    bytes: int
    peak: float
    bandwidth: float


class ReportKernel(Document):
    """A kernel that the module runs, or would run were it faster. Times are in seconds. `stale`
    says what has changed since a kept kernel was made; it is empty where nothing has."""

    key: str
    operators: list[str]
    expression: str
    tiles: dict[str, int]
    split: str | None
    parts: int
    lowering: dict[str, Any]
    predicted_seconds: float | None
    measured_seconds: float | None
    error: float | None
    candidates: dict[str, int]
    trials: int
    failed: dict[str, int]
    resources: dict[str, float]
    stale: str = ""
    work: ReportWork | None = None


class ReportChain(Document):
    """A chain of the model and what was made of it; `places` are where the model has it, and `cut`
    has the number of operators of each kernel."""

    name: str
    key: str
    places: list[str]
    extents: dict[str, int]
    operators: list[str]
    fused: bool
    cut: list[int] = []
    reason: str
    saved_bytes: float
    fused_seconds: float | None
    unfused_seconds: float | None
    candidate: ReportKernel | None
    kernels: list[ReportKernel]


class ReportProduct(Document):
    """A matrix product of the model; `chain` counts from 0, `reason` says why it stands alone."""

    name: str
    shape: dict[str, int]
    dtype: str
    phi: float | None
    bound: float | None
    mbci: bool
    chain: int | None
    reason: str | None


class Port(Document):
    """An input or output of the module; an extent that is known only at run time is -1 in its
    shape, and `extents` has it in terms of those of the report."""

    name: str
    shape: list[int]
    dtype: str
    extents: list[str | int] | None = None


class ReportExtent(Document):
    """An extent that is known only at run time, and the dimensions of inputs that have it. More
    than its highest are computed in slices where it is `sliced`."""

    name: str
    low: int
    high: int
    sliced: bool = False
    places: list[list[str | int]]


class ReportBucket(Document):
    """The least and the highest run-time extents of a bucket, and its chains, which count from
    0."""

    low: dict[str, int]
    high: dict[str, int]
    chains: list[int]


class ReportPadding(Document):
    """How many times as long an average run is predicted to take for its padding, with the buckets
    that were chosen, and with one."""

    buckets: float
    one_bucket: float


class ReportPrecision(Document):
    """How a float32 model was narrowed: the products with operands of the type, those whose weights
    are beyond its numbers, the other operators that are computed in float32, and what is to be said
    of the type on the device."""

    dtype: str
    narrow_products: int
    float32_products: int
    float32_operators: int
    note: str | None


class ReportShape(Document):
    """The run-time extents of one comparison, and its error."""

    extents: dict[str, int]
    error: float


class ReportCheck(Document):
    """The module beside onnxruntime, which computes the model as it is: the norm-wise relative
    error of every output, the largest of them, and the largest that passes; or why nothing was
    compared."""

    error: float | None = None
    outputs: dict[str, float] | None = None
    tolerance: float | None = None
    seed: int | None = None
    shapes: list[ReportShape] | None = None
    skipped: str | None = None


class ReportLock(Document):
    """What mcfuser.lock keeps of a compilation: the cover of every chain, by the chain's key, and
    with which compilers and sources its kernels were made; `device` is the device's key."""

    device: str
    toolchain: dict[str, str]
    sources: str
    chains: dict[str, dict[str, Any]]
    buckets: list[dict[str, dict[str, int]]] | None = None


class ReportStep(Document):
    """A chain at one of its places, or operators in no chain that follow each other for one
    `reason`. `chain` counts from 0; `operators` are numbers by name."""

    chain: int | None
    name: str
    operators: dict[str, int]
    reason: str | None


class ReportOutline(Document):
    """The model in the order in which it runs; `more` steps are left out. Of a model with ranges of
    extents it is that of its largest bucket."""

    steps: list[ReportStep]
    more: int


class ReportFunction(Document):
    """A function of the running module: its seconds in a run, in all calls together, and how often
    a run calls it. A `tuned` one is a chain's kernel."""

    name: str
    seconds: float
    calls: float
    tuned: bool


class ReportModel(Document):
    """The posted model: its SHA-256 and bytes, the SHA-256 of each file with its weights, and that
    of the archive which all were in, if there was one."""

    sha256: str
    bytes: int
    external: dict[str, str]
    archive: str | None


class ReportModule(Document):
    """The compiled module: its SHA-256 and bytes."""

    sha256: str
    bytes: int


class Report(Document):
    """How a model was compiled. Times are in seconds; where one is not known it is null. `external`
    are the files beside the model that its weights were read from, and `in_place` has the outputs
    that are written into the memory of inputs, by these. `shapes` are those that were asked for,
    `revision` is mcfuser's version and `built` the time of the compilation, in UTC. `cache` has the
    number of kernels that were kept ("hit"), a team's ("team"), and searched for ("miss")."""

    device: str
    arch: str
    units: int
    seed: int
    times: str
    chains: list[ReportChain]
    products: list[ReportProduct]
    seconds: dict[str, float]
    versions: dict[str, str]
    inputs: list[Port]
    outputs: list[Port]
    external: list[str] = []
    precision: ReportPrecision | None = None
    in_place: dict[str, str] = {}
    extents: list[ReportExtent] | None = None
    buckets: list[ReportBucket] | None = None
    padding: ReportPadding | None = None
    lock: ReportLock | None = None
    outline: ReportOutline | None = None
    functions: list[ReportFunction] | None = None
    check: ReportCheck | None = None
    shapes: dict[str, list[int | str]] = {}
    model: ReportModel | None = None
    module: ReportModule | None = None
    revision: str | None = None
    built: str | None = None
    cache: dict[str, int] | None = None
