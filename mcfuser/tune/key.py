"""What a tuned kernel is good for: the value whose hash a cached kernel is found by.

A kernel that is kept serves a later search only where everything that its text, its binary and the
choice among candidates depend on is the same: the chain, the device, the knobs, the compilers, and
the sources of this package that generate code. Two keys can be compared field by field, so that a
miss says what has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from mcfuser.device import Device
from mcfuser.revision import source_hash

Kind = Literal["cpu", "cuda"]

ABSENT = "absent"
"""The version of what is not installed."""

GENERATORS: Mapping[Kind, tuple[str, ...]] = {
    "cpu": (
        "errors.py", "expr.py", "chain", "algebra", "space", "codegen/tensorir",
    ),
    "cuda": (
        "errors.py", "expr.py", "chain", "algebra", "space", "lowering",
        "codegen/triton", "codegen/cuda/cubin.py",
    ),
}  # fmt: skip
"""Files and folders of this package that a kernel's text and binary depend on, by kind of device.
How candidates are ranked, searched and measured changes which kernel is found, not what it is."""

PACKAGES: Mapping[Kind, tuple[str, ...]] = {
    "cpu": ("apache-tvm", "apache-tvm-ffi", "sympy"),
    "cuda": ("triton", "sympy"),
}
"""Installed packages that a kernel depends on: its compiler, and SymPy, which derives repairs."""


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


def cache_key(chain: str, device: Device, space: str, shifts: bool, knobs: str) -> CacheKey:
    """The key of a chain's kernel on a device, with this process's compilers and sources."""
    return CacheKey(
        chain, device.key, space, shifts, knobs, toolchain(device.kind), sources(device.kind)
    )


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
def toolchain(kind: Kind) -> tuple[tuple[str, str], ...]:
    """Programs and libraries that a kernel is made with, and their versions.

    Those for a GPU are told without TVM, and without loading Triton.
    """
    found = [(name, _version(name)) for name in PACKAGES[kind]]
    found.append(("llvm", _llvm()) if kind == "cpu" else ("ptxas", _ptxas()))
    return tuple(found)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT


def _llvm() -> str:
    """The LLVM that TVM was built with."""
    try:
        from tvm import get_global_func
    except ImportError:
        return ABSENT
    told = get_global_func("target.llvm_version_major", allow_missing=True)
    return str(told()) if told is not None else ABSENT


def _ptxas() -> str:
    """The assembler that Triton brings along."""
    found = importlib.util.find_spec("triton")  # finds the package and does not load it
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        program = Path(folder) / "backends" / "nvidia" / "bin" / "ptxas"
        try:
            told = subprocess.run(
                [str(program), "--version"], capture_output=True, text=True, timeout=60
            )
        except OSError:
            continue
        if (words := re.search(r"\bV(\d+(?:\.\d+)*)", told.stdout)) is not None:
            return words[1]
    return ABSENT


@cache
def sources(kind: Kind) -> str:
    """A hash of the sources that generate code for a kind of device."""
    return source_hash(generating(kind))[:16]


def generating(kind: Kind) -> Iterator[Path]:
    """The files of GENERATORS, in a fixed order."""
    root = Path(__file__).parent.parent
    for name in GENERATORS[kind]:
        there = root / name
        yield from sorted(there.rglob("*.py")) if there.is_dir() else (there,)
