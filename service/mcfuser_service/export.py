"""Kept kernels as lines of a file (mcfuser.tune.exchange), for the command and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mcfuser.tune.exchange import header, line_of
from mcfuser.tune.t4 import t4_document
from mcfuser_db import Storage
from mcfuser_service.kept import every_kernel


def exported(
    store: Storage, device: str | None = None, chain: str | None = None, key: str | None = None
) -> Iterator[str]:
    """The header and a line for each kernel, newest first, with their ends: of a device, of a chain
    (its name or key) and with a key, where these are given."""
    yield header() + "\n"
    for row in every_kernel(store, device, chain, key):
        document = store.kernel(row.key)
        line = line_of(document) if document is not None else None
        if line is not None:
            yield line + "\n"


def t4_documents(
    store: Storage, device: str | None = None, chain: str | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The keys of kernels with all their candidates as T4 documents (mcfuser.tune.t4), newest
    first, without kernels that cannot be read."""
    for row in every_kernel(store, device, chain):
        if (tuned := store.get(row.key)) is not None:
            yield row.key, t4_document(tuned, store.tried(row.key), row.created)


@dataclass
class Export:
    """The bytes of a file of kernels, and what is in it: how many kernels, for which devices, and
    the programs that they were made with, as `triton 3.6.0`."""

    data: bytes = b""
    kernels: int = 0
    devices: set[str] = field(default_factory=set)
    toolchain: set[str] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        return {
            "kernels": self.kernels,
            "bytes": len(self.data),
            "devices": sorted(self.devices),
            "toolchain": sorted(self.toolchain),
        }


def collected(lines: Iterable[str]) -> Export:
    """What `exported` gives, as a whole."""
    every, made = list(lines), Export()
    for line in every[1:]:
        document = json.loads(line)
        made.kernels += 1
        made.devices.add(document["device"])
        made.toolchain |= {f"{n} {v}" for n, v in document["made"]["toolchain"].items()}
    made.data = "".join(every).encode()
    return made
