"""Kept kernels one by one: their ages here, and those that are stale measured again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from mcfuser.backends import backend_of
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import LimitError
from mcfuser.measure.worker import Worker
from mcfuser.tune.key import CacheKey
from mcfuser.tune.lookup import AgeHere, Ages
from mcfuser.tune.rebuild import rebuilt, record_of
from mcfuser.tune.tuned import NoCandidate
from mcfuser_db import Storage
from mcfuser_db.models import KernelRow


def every_kernel(
    store: Storage, device: str | None = None, chain: str | None = None, key: str | None = None
) -> Iterator[KernelRow]:
    """All kernels, newest first, without documents and binaries: of a device, of a chain (its name
    or key) and with a key, where these are given."""
    after = None
    while rows := store.kernels(device, chain, 500, after, key):
        yield from rows
        after = rows[-1].key


def age_of(store: Storage, row: KernelRow, ages: Ages) -> AgeHere:
    """The age of a kept kernel on this machine, with the clauses that say why."""
    try:
        made = CacheKey.from_json(row.made or {})
    except (KeyError, TypeError, ValueError):
        return "outdated", ("it was kept without its cache key",)

    def conditions() -> Mapping[str, Any]:
        found = (store.kernel(row.key) or {}).get("conditions")
        return found if isinstance(found, dict) else {}

    return ages.of(made, row.device, conditions)


def refreshed(store: Storage, row: KernelRow, ages: Ages, limit: float) -> bool:
    """Whether a kernel was stale and is kept anew. Raises LimitError where it cannot be."""
    if age_of(store, row, ages)[0] != "stale" or (old := store.get(row.key)) is None:
        return False
    target = store.probed(device_named(row.device))
    with Worker(backend_of(target), target) as worker:
        if (why := worker.refused()) is not None:
            raise LimitError(why)
        try:
            new = rebuilt(record_of(old), target, worker, time.monotonic() + limit)
        except NoCandidate as error:
            raise LimitError(str(error)) from None
    if new.measured is None:
        raise LimitError("it was not measured in time")
    store.renew_kernel(old.key, new)
    return True
