"""Says over HTTP which kept kernel a chain would use, or why none (mcfuser.tune.lookup).

What kernels are made with here is asked of a process, once for each device: the CPU at hand must be
probed, and the compilers loaded. Everything else is read from the database.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from mcfuser.chain import from_text
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.errors import InputError
from mcfuser.process.confined import Limits, Stopped, run
from mcfuser.space.prune import SpaceKind
from mcfuser.tune.lookup import Here, look_up
from mcfuser_db import Storage
from mcfuser_service.problems import ProblemError, error, problem
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.team import layered

log = logging.getLogger(__name__)

_KEY = 64
_SECONDS = 60.0
_AT_ONCE = 2


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
        self._layers = layered(store, settings.team_cache, settings.team_key)
        self._known: dict[tuple[str, SpaceKind, bool], Here] = {}
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
            if which not in self._known:
                now = await threads(partial(self._ask, *which), limiter=self._turns)
                self._known[which] = now
        except InputError as wrong:
            raise error("bad-option", str(wrong)) from None
        found = await threads(look_up, self._layers, asked.chain_key, self._known[which])
        return found.to_json()

    def _asked(self, words: str, dtype: str) -> Asked:
        return asked_of(self._store, words) or Asked(from_text(words, dtype).key)

    def _ask(self, device: str, space: SpaceKind, shifts: bool) -> Here:
        limits = Limits(memory=self._settings.job_memory, wall=_SECONDS)
        request = {"device": device, "space": space, "shifts": shifts}
        try:
            return Here.from_json(run(self._module, request, limits))
        except Stopped as stopped:
            log.warning("what kernels are made with is not known: %s", stopped)
            log.debug("the last words: %s", stopped.words)
            crowd = problem("busy", "the compilers did not answer in time; ask again in a while")
            raise ProblemError(crowd, {"Retry-After": "5"}) from None
