"""Kept kernels one by one: their ages here, whether they are sound, which are removed, and those
that are stale measured again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mcfuser.backends import backend_of
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import LimitError
from mcfuser.measure.worker import Worker
from mcfuser.tune.key import CacheKey
from mcfuser.tune.lookup import AgeHere, Ages
from mcfuser.tune.rebuild import changed, rebuilt, record_of
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


Soundness = Literal["sound", "stale", "outdated", "damaged", "changed"]
"""The state of a kept record: it is as it was written and is used, first or until it is measured
again; it is used no more; it cannot be read; or its source is not the one that is made here."""


def soundness(
    store: Storage, row: KernelRow, ages: Ages, generate: bool
) -> tuple[Soundness, tuple[str, ...]]:
    """The state of a kept kernel on this machine, and the clauses that say why. Its source is
    generated anew where it is to be compared (`generate`), which loads the compilers."""
    tuned = store.get(row.key)
    if tuned is None:
        return "damaged", ("its record cannot be read; it is tuned again when it is asked for",)
    age, reasons = age_of(store, row, ages)
    if age != "current":
        return age, reasons
    why = changed(tuned) if generate else ""
    return ("changed", (why,)) if why else ("sound", ())


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which kept kernels are removed: those that meet every condition that is set. `before` is when
    they were kept at the latest."""

    before: datetime | None = None
    device: str | None = None
    stale: bool = False
    damaged: bool = False

    @property
    def is_empty(self) -> bool:
        return self == Pruning()

    def meets(self, store: Storage, row: KernelRow, ages: Ages) -> bool:
        """Whether a kernel of the device is removed."""
        if self.before is not None and row.created > self.before:
            return False
        if self.stale and age_of(store, row, ages)[0] == "current":
            return False
        return not self.damaged or store.get(row.key) is None

    def searches(self, store: Storage) -> list[str]:
        """The keys of interrupted searches whose candidates are removed: they have neither an age
        nor a record."""
        if self.stale or self.damaged:
            return []
        every = store.unfinished(self.device)
        return [u.key for u in every if self.before is None or u.last <= self.before]


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
