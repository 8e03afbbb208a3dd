"""Says over HTTP which kept kernel a chain would use, or why none, and how old kept kernels are
(mcfuser.tune.lookup).

What kernels are made with here is asked of a process, once for each device: the CPU at hand must be
probed, and the compilers loaded. Everything else is read from the database.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from mcfuser.chain import from_text
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE, HOST, device_named
from mcfuser.errors import InputError
from mcfuser.process.confined import Limits, Stopped, run
from mcfuser.space.prune import SpaceKind
from mcfuser.tune.age import Age
from mcfuser.tune.lookup import Ages, Here, look_up
from mcfuser_db import KernelRow, Storage
from mcfuser_service.kept import age_of
from mcfuser_service.problems import ProblemError, error, problem
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.team import layered

log = logging.getLogger(__name__)

_KEY = 64
_SECONDS = 60.0
_AT_ONCE = 2


Which = tuple[str, SpaceKind, bool]
"""A device by name, the space and the shifts of a cache key."""


@dataclass(frozen=True, slots=True)
class KernelAge:
    """The age of a kept kernel here, and the clauses that say why."""

    key: str
    age: Age
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A chain that is asked about, by its key; of a kernel also its device and space."""

    chain_key: str
    device: str | None = None
    space: SpaceKind = "mcfuser"
    shifts: bool = True


def asked_of(store: Storage, words: str) -> Asked | None:
    """What is asked where `words` are the key of a kept kernel or of a chain; None where they are
    no key."""
    if len(words) != _KEY or set(words) - set("0123456789abcdef"):
        return None
    for row in store.kernels(key=words):
        made = row.made or {}
        space: SpaceKind = "chimera" if made.get("space") == "chimera" else "mcfuser"
        return Asked(row.chain_key, row.device, space, made.get("shifts") is not False)
    return Asked(words)


class Explainer:
    """Explains hits and misses; it is called in the web process."""

    def __init__(
        self,
        settings: ServiceSettings,
        store: Storage,
        module: str = "mcfuser_service.here_child",
    ) -> None:
        self._settings, self._store, self._module = settings, store, module
        self._layers = layered(store, settings.team)
        self._known: dict[Which, Here] = {}
        self._asking: dict[Which, anyio.Lock] = {}
        self._host: Device | None = None
        self._turns = anyio.CapacityLimiter(_AT_ONCE)

    async def __call__(self, chain: str, device: str | None, dtype: str) -> dict[str, Any]:
        """The document of the lookup (Lookup.to_json) for a chain that is given as a short form, or
        as the key of a chain or of a kernel.

        Raises ProblemError where one of them is not known, or the process took too long.
        """
        threads = anyio.to_thread.run_sync
        try:
            asked = await threads(self._asked, chain, dtype)
            name = device or asked.device or HOST
            name = name if name == HOST else device_named(name).name
            which = name, asked.space, asked.shifts
            now = await self._here(which)
        except InputError as wrong:
            raise error("bad-option", str(wrong)) from None
        found = await threads(look_up, self._layers, asked.chain_key, now)
        return found.to_json()

    async def ages(self, keys: Sequence[str]) -> list[KernelAge]:
        """The ages of kept kernels, in the order of their keys, without those that are not kept.
        Raises ProblemError where the process took too long."""
        threads = anyio.to_thread.run_sync
        rows = await threads(partial(self._store.kernels_of, keys))
        ages = await self.known(rows)
        return await threads(
            lambda: [KernelAge(r.key, *age_of(self._store, r, ages)) for r in rows]
        )

    async def known(self, rows: Sequence[KernelRow]) -> Ages:
        """What tells the ages of these kernels, and asks nothing more of the compilers. Raises
        ProblemError where the process took too long."""
        for which in dict.fromkeys(w for row in rows if (w := _which(row)) is not None):
            with suppress(InputError):  # a device that is not known here
                await self._here(which)
        return Ages(dict(self._known))

    async def device(self, name: str) -> Device | None:
        """A device with its rates; None where its name is not known. Of the CPU nothing else is
        told. Raises ProblemError where the process that probes it took too long."""
        if name == HOST:
            await self._here((HOST, "mcfuser", True))
        return self._host if name == HOST else CATALOGUE.get(name)

    async def _here(self, which: Which) -> Here:
        if which not in self._known:
            async with self._asking.setdefault(which, anyio.Lock()):
                if which not in self._known:  # nobody else has asked meanwhile
                    ask = partial(self._ask, *which)
                    found = await anyio.to_thread.run_sync(ask, limiter=self._turns)
                    self._known[which] = found
        return self._known[which]

    def _asked(self, words: str, dtype: str) -> Asked:
        return asked_of(self._store, words) or Asked(from_text(words, dtype).key)

    def _ask(self, device: str, space: SpaceKind, shifts: bool) -> Here:
        limits = Limits(memory=self._settings.job_memory, wall=_SECONDS)
        request = {"device": device, "space": space, "shifts": shifts}
        try:
            found = run(self._module, request, limits)
        except Stopped as stopped:
            log.warning("what kernels are made with is not known: %s", stopped)
            log.debug("the last words: %s", stopped.words)
            crowd = problem("busy", "the compilers did not answer in time; ask again in a while")
            raise ProblemError(crowd, {"Retry-After": "5"}) from None
        if device == HOST:
            rates = tuple(found["peak"].items())
            self._host = Device(HOST, HOST, "", 1, rates, found["bandwidth"], 0)
        return Here.from_json(found)


def _which(row: KernelRow) -> Which | None:
    """What must be known here to tell a kernel's age; None where its cache key was not kept, or
    its device is not known."""
    if row.made is None or (row.device != HOST and row.device not in CATALOGUE):
        return None
    space: SpaceKind = "chimera" if row.made.get("space") == "chimera" else "mcfuser"
    return row.device, space, row.made.get("shifts") is not False
