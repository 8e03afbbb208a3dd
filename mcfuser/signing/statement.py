"""What is stated of a compiled module: an in-toto statement, whose predicate is mcfuser's own.

The predicate says what the module was made from and how, as docs/signing.md documents it. All of it
is taken from the report of the compilation, so a statement can be made wherever the report and the
module are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcfuser.errors import InputError, SignatureError

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:mcfuser:attestation:module:v1"
MODULE, REPORT = "module.so", "report.json"
"""The names of the files that a statement is about."""

_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Error = Annotated[float, Field(allow_inf_nan=False)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StatedModel(_Read):
    """The model that a module was made from: its digest, those of the files that its weights were
    read from, by their names in it, and that of the archive which all were in, if there was one."""

    sha256: _Digest
    external: Mapping[str, _Digest] = {}
    archive: _Digest | None = None


class _Module(_Read):
    sha256: _Digest


class _Precision(_Read):
    dtype: str


class _Lock(_Read):
    device: str
    toolchain: Mapping[str, str]
    sources: str


class _Check(_Read):
    tolerance: _Error | None = None
    outputs: Mapping[str, _Error] | None = None
    skipped: str | None = None


class _Kernel(_Read):
    key: str
    chain_key: str
    operators: tuple[str, ...]
    error: _Error | None


class _Chain(_Read):
    name: str
    kernels: tuple[_Kernel, ...]


class _Report(_Read):
    """What a statement has of a report."""

    model: StatedModel
    module: _Module
    built: str
    revision: str
    device: str
    arch: str
    seed: int
    shapes: Mapping[str, tuple[int | str, ...]]
    precision: _Precision | None = None
    in_place: Mapping[str, str] = {}
    versions: Mapping[str, str]
    lock: _Lock
    check: _Check
    chains: tuple[_Chain, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A file that a statement is about: its SHA-256 and its bytes."""

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes | mmap) -> Self:
        return cls(hashlib.sha256(data).hexdigest(), len(data))


@dataclass(frozen=True, slots=True)
class ModuleStatement:
    """What was stated: the files by their names, the model, and the predicate as it is."""

    subjects: Mapping[str, Subject]
    model: StatedModel
    predicate: Mapping[str, Any]


def statement(report: bytes, module: Subject) -> bytes:
    """The statement of a module and its report, in JSON: equal bytes for equal files.

    `report` are the bytes of report.json. Raises InputError where the report is not one of
    mcfuser's, or is that of another module.
    """
    try:
        found = _Report.model_validate_json(report)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise InputError(
            f"{REPORT} does not say what is to be signed: {where}: {first['msg'][:200]}; compile "
            "the model again"
        ) from None
    if found.module.sha256 != module.sha256:
        raise InputError(f"{MODULE} is not the one that {REPORT} tells of; compile the model again")
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(MODULE, module), _subject(REPORT, Subject.of(report))],
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(found),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _subject(name: str, subject: Subject) -> dict[str, Any]:
    size = {"bytes": subject.size}
    return {"name": name, "digest": {"sha256": subject.sha256}, "annotations": size}


def _predicate(report: _Report) -> dict[str, Any]:
    model = report.model
    source: dict[str, Any] = {
        "digest": {"sha256": model.sha256},
        "external": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in sorted(model.external.items())
        ],
    }
    if model.archive is not None:
        source["archive"] = {"digest": {"sha256": model.archive}}
    return {
        "model": source,
        "device": {"name": report.device, "arch": report.arch, "key": report.lock.device},
        "options": {
            "shapes": {name: list(shape) for name, shape in report.shapes.items()},
            "precision": report.precision.dtype if report.precision is not None else None,
            "inPlace": dict(report.in_place),
            "seed": report.seed,
        },
        "versions": {**report.versions, "mcfuser": report.revision},
        "toolchain": dict(report.lock.toolchain),
        "sources": report.lock.sources,
        "check": _check(report.check),
        "kernels": [
            {"key": k.key, "chain": chain.name, "chainKey": k.chain_key,
             "operators": list(k.operators), "error": k.error}
            for chain in report.chains for k in chain.kernels
        ],
        "built": report.built,
    }  # fmt: skip


def _check(check: _Check) -> dict[str, Any]:
    """The errors found, by output, and the largest that passes; or why nothing was compared."""
    if check.outputs is None:
        return {"skipped": check.skipped}
    return {"tolerance": check.tolerance, "errors": dict(check.outputs)}


# --- reading --------------------------------------------------------------------------------


class _DigestSet(_Read):
    sha256: _Digest


class _Descriptor(_Read):
    name: str = ""
    digest: _DigestSet


class _Annotations(_Read):
    size: int | None = Field(default=None, alias="bytes", ge=0)


class _StatedSubject(_Descriptor):
    annotations: _Annotations = _Annotations()


class _Source(_Read):
    digest: _DigestSet
    external: tuple[_Descriptor, ...] = ()
    archive: _Descriptor | None = None


class _Predicate(_Read):
    model: _Source


class _Document(_Read):
    subject: tuple[_StatedSubject, ...]
    predicate: _Predicate


def read_statement(payload: bytes, what: str) -> ModuleStatement:
    """The statement that a payload is, which was signed.

    `what` names it in messages. Raises SignatureError where it is malformed, of another type, or
    about other files.
    """
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        raise SignatureError(
            f"{what} holds no in-toto statement: its payload is not JSON"
        ) from None
    types = ("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)
    for field, wanted in types:
        given = document.get(field) if isinstance(document, dict) else None
        if given != wanted:
            raise SignatureError(
                f"{what} states nothing of a compiled module: its {field} is {str(given)[:100]!r}, "
                f"not {wanted}"
            )
    try:
        found = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise SignatureError(
            f"{what} holds a malformed statement: {'.'.join(map(str, first['loc']))}: "
            f"{first['msg'][:200]}"
        ) from None
    names = [s.name for s in found.subject]
    if sorted(names) != sorted((MODULE, REPORT)):
        told = ", ".join(f"'{name[:100]}'" for name in names[:3]) or "no file"
        raise SignatureError(f"{what} is about {told}, not about {MODULE} and {REPORT}")
    unmeasured = [s.name for s in found.subject if s.annotations.size is None]
    if unmeasured:
        raise SignatureError(f"{what} does not say how many bytes {unmeasured[0]} has")
    model = found.predicate.model
    return ModuleStatement(
        {s.name: Subject(s.digest.sha256, s.annotations.size or 0) for s in found.subject},
        StatedModel(
            sha256=model.digest.sha256,
            external={e.name: e.digest.sha256 for e in model.external},
            archive=model.archive.digest.sha256 if model.archive is not None else None,
        ),
        document["predicate"],
    )
