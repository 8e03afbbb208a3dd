"""What a tuned kernel is good for: the value whose hash a cached kernel is found by.

A kernel that is kept serves a later search only where everything that its text, its binary and the
choice among candidates depend on is the same: the chain, the device, the knobs, the compilers, and
the sources of this package that generate code. Two keys can be compared field by field, so that a
miss says what has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from mcfuser.backend import Backend
from mcfuser.device import Device
from mcfuser.revision import source_hash


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything that a cached kernel depends on.

    `chain` and `device` are `Chain.key` and `Device.key`. `space` and `shifts` name the searched
    space, `knobs` is the text that declares what a candidate may ask of its compiler. `toolchain`
    holds compilers and libraries with their versions, `sources` the hash of the code generator.
    """

    chain: str
    device: str
    space: str
    shifts: bool
    knobs: str
    toolchain: tuple[tuple[str, str], ...]
    sources: str

    @property
    def digest(self) -> str:
        """64 hexadecimal digits, equal for equal keys."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"toolchain": dict(self.toolchain)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> CacheKey:
        """Raises KeyError, TypeError or ValueError where the document is of another form."""
        toolchain = tuple((str(n), str(v)) for n, v in dict(document["toolchain"]).items())
        return CacheKey(**{**document, "toolchain": toolchain})


def cache_key(
    chain: str, device: Device, space: str, shifts: bool, knobs: str, backend: Backend
) -> CacheKey:
    """The key of a chain's kernel on a device, with this process's compilers and sources."""
    return CacheKey(chain, device.key, space, shifts, knobs, toolchain(backend), sources(backend))


def differs(one: CacheKey, other: CacheKey) -> tuple[str, ...]:
    """The fields in which two keys differ; of the toolchain, the programs that do."""
    found: list[str] = []
    for field in fields(CacheKey):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine != theirs and field.name == "toolchain":
            names = dict.fromkeys([*dict(mine), *dict(theirs)])
            changed = (n for n in names if dict(mine).get(n) != dict(theirs).get(n))
            found += [f"toolchain.{n}" for n in changed] or ["toolchain"]
        elif mine != theirs:
            found.append(field.name)
    return tuple(found)


def nearest(key: CacheKey, kept: Iterable[CacheKey]) -> tuple[str, ...]:
    """The fields in which a key differs from the most similar one of those kept; none where there
    is no other."""
    return min((d for other in kept if (d := differs(key, other))), key=len, default=())


@cache
def toolchain(backend: Backend) -> tuple[tuple[str, str], ...]:
    """Programs and libraries that a kernel is made with, and their versions."""
    return backend.toolchain()


@cache
def sources(backend: Backend) -> str:
    """A hash of the sources that generate code for a back end.

    How candidates are ranked, searched and measured changes which kernel is found, not what it is.
    """
    return source_hash(generating(backend))[:16]


def generating(backend: Backend) -> Iterator[Path]:
    """The files of `backend.sources`, in a fixed order."""
    root = Path(__file__).parent.parent
    for name in backend.sources:
        there = root / name
        yield from sorted(there.rglob("*.py")) if there.is_dir() else (there,)
