"""Starts worker processes, replaces those that die, and takes back the jobs that they held."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mcfuser.process.scratch import remove_abandoned
from mcfuser.process.supervised import Supervised
from mcfuser_db import Storage, StorageError
from mcfuser_service.outage import reason
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.worker import Assignment

log = logging.getLogger(__name__)

_SOON, _LATE = (
    0.5,
    30.0,
)  # seconds between a worker's death and its replacement; doubled while workers die young
_YOUNG = 60.0  # seconds
_LOOK = 0.1  # seconds between two checks of the workers
_READ = 60.0  # seconds in which a worker reads its assignment


@dataclass(slots=True)
class _Slot:
    """A slot for one worker. The next worker in it has the same name, and takes back its claims."""

    name: str
    process: Supervised | None = None
    born: float = 0.0
    due: float = 0.0
    delay: float = _SOON


class Supervisor:
    """Keeps the settings' number of workers alive while the `with` block runs."""

    def __init__(self, settings: ServiceSettings, load: str, store: Storage, name: str) -> None:
        self._settings = settings
        self._load = load
        self._store = store
        self._slots = [_Slot(f"{name}:{i}") for i in range(settings.workers)]
        self._alive = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="supervisor", daemon=True)

    def alive(self) -> int:
        """The number of workers that were alive at the last check, at most a tenth of a second
        ago."""
        return self._alive

    def __enter__(self) -> Self:
        for slot in self._slots:  # jobs held under these names were held when a server died
            try:
                back = self._store.interrupted(slot.name)
            except StorageError as error:  # the worker of that name takes them back
                log.warning("jobs not taken back: %s", reason(error), extra={"worker": slot.name})
                continue
            if back > 0:
                log.warning("took back jobs", extra={"worker": slot.name, "jobs": back})
        remove_abandoned()  # what processes of a server that was killed have left
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.terminate()
        deadline = time.monotonic() + self._settings.grace
        for slot in self._slots:
            if slot.process is not None:
                slot.process.wait(deadline)
                slot.process.end()
                self._release(slot, blame=False)
        remove_abandoned()  # some may have ended after the worker that had started them

    def _keep(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            for slot in self._slots:
                if slot.process is not None and not slot.process.alive:
                    self._bury(slot, now)
                if slot.process is None and slot.due <= now:
                    self._start(slot, now)
            self._alive = sum(s.process is not None for s in self._slots)
            self._stop.wait(_LOOK)

    def _start(self, slot: _Slot, now: float) -> None:
        slot.process = Supervised(
            "mcfuser_service.worker_child", output=None, errors=None, session=True,
            niceness=self._settings.niceness,
        )  # fmt: skip
        slot.born = now
        assignment = Assignment(self._settings, self._load, slot.name)
        slot.process.write(assignment.to_json().encode(), now + _READ)  # it fits in the pipe
        slot.process.close_input()

    def _bury(self, slot: _Slot, now: float) -> None:
        assert slot.process is not None
        code = slot.process.status
        if now - slot.born > _YOUNG:
            slot.delay = _SOON
        log.error("worker died", extra={"worker": slot.name, "code": code, "next_in": slot.delay})
        killed = slot.process.killed_from_outside
        slot.process.end()
        if (left := remove_abandoned()) > 0:
            log.info(
                "removed the temporary files of processes that were killed", extra={"folders": left}
            )
        self._release(slot, blame=True, killed=killed)
        slot.process, slot.due = None, now + slot.delay
        slot.delay = min(slot.delay * 2, _LATE)

    def _release(self, slot: _Slot, blame: bool, killed: bool = False) -> None:
        try:
            if killed:
                self._store.killed(slot.name)
            else:
                self._store.release(slot.name, blame)
        except StorageError as error:  # the next worker of that name does it
            log.warning("jobs not taken back: %s", reason(error), extra={"worker": slot.name})
