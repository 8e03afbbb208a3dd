"""The key of a cached kernel: everything that its source and its binary depend on.

A kept kernel is used again only where the chain, the device, the space, the knobs, the compilers
and the sources of this package that generate code are the same. Keys are compared field by field,
so that a miss can say what has changed.
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
from mcfuser.space.knobs import KnobTable


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything that a cached kernel depends on.

    `chain` and `device` are `Chain.key` and `Device.key`. `space` and `shifts` name the searched
    space, `knobs` is the text of the knobs' declaration. `toolchain`
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


def key_here(
    chain_key: str, device: Device, space: str, shifts: bool, backend: Backend
) -> CacheKey:
    """The cache key that a kernel of the chain with a key has where it is made here."""
    knobs = KnobTable(backend.knobs, device).text
    return cache_key(chain_key, device, space, shifts, knobs, backend)


def differs(one: CacheKey, other: CacheKey) -> tuple[str, ...]:
    """The names of the fields in which two keys differ; for the toolchain, of its programs."""
    fields_that_differ: list[str] = []
    for field in fields(CacheKey):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine != theirs and field.name == "toolchain":
            names = dict.fromkeys([*dict(mine), *dict(theirs)])
            changed = (n for n in names if dict(mine).get(n) != dict(theirs).get(n))
            fields_that_differ += [f"toolchain.{n}" for n in changed] or ["toolchain"]
        elif mine != theirs:
            fields_that_differ.append(field.name)
    return tuple(fields_that_differ)


def nearest(key: CacheKey, kept: Iterable[CacheKey]) -> tuple[str, ...]:
    """The fields in which a key differs from the nearest of the `kept` ones; none if there is no
    other."""
    differences = [differs(key, other) for other in kept]
    return min((d for d in differences if d), key=len, default=())


@cache
def toolchain(backend: Backend) -> tuple[tuple[str, str], ...]:
    """The programs and libraries that make a back end's kernels, and their versions."""
    return backend.toolchain()


@cache
def driver(backend: Backend) -> str:
    """The version of the driver under which a back end's kernels are timed here, or nothing."""
    return backend.driver()


@cache
def sources(backend: Backend) -> str:
    """A hash of the sources that generate code for a back end.

    The code that ranks, searches and measures is not part of it: that decides which kernel is kept,
    not whether it is right.
    """
    return source_hash(generating(backend))[:16]


def generating(backend: Backend) -> Iterator[Path]:
    """The files of `backend.sources`, in a fixed order; folders stand for the files in them."""
    root = Path(__file__).parent.parent
    for name in backend.sources:
        there = root / name
        yield from sorted(there.rglob("*.py")) if there.is_dir() else (there,)
