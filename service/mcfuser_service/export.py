"""Kept kernels as lines of a file (mcfuser.tune.exchange), for the command and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from mcfuser.tune.exchange import header, line_of
from mcfuser_db import Storage

_PAGE = 100


def exported(
    store: Storage, device: str | None = None, chain: str | None = None, key: str | None = None
) -> Iterator[str]:
    """The header and a line for each kernel, newest first, with their ends: of a device, of a chain
    (its name or key) and with a key, where these are given."""
    yield header() + "\n"
    after = None
    while rows := store.kernels(device, chain, _PAGE, after, key):
        for row in rows:
            document = store.kernel(row.key)
            line = line_of(document) if document is not None else None
            if line is not None:
                yield line + "\n"
        after = rows[-1].key
