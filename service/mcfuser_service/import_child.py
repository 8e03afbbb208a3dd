"""The process in which kernels are imported (mcfuser.process.confined): a file that others wrote is
read, and its kernels are built and checked, where limits hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcfuser.backends import backend_of
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.measure.worker import Worker
from mcfuser.tune.exchange import TuningRecord, lines_of, read_line
from mcfuser.tune.rebuild import vetted, wanted_key
from mcfuser.tune.tuned import NoCandidate
from mcfuser_db import Storage


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Imports the lines of `file` after number `after` to the database `store`.

    Each kernel has `seconds` to be built and checked. `tell` is called with the number of each
    `line` before it is read, and again with its `outcome` ("kept", "known" or "refused") and the
    reason in `words`. Raises InputError where the file as a whole cannot be read.
    """
    with ExitStack() as stack:
        store = stack.enter_context(closing(Storage(request["store"])))
        bench = Bench(stack, store)
        file = stack.enter_context(Path(request["file"]).open("rb"))
        for number, line in lines_of(file):
            if number <= request["after"]:
                continue
            tell({"line": number})
            outcome, words = _imported(line, store, bench, request["seconds"])
            tell({"line": number, "outcome": outcome, "words": words})
    return {}


@dataclass
class Bench:
    """The devices of the records, each with the process that measures on it; they end with
    `stack`."""

    stack: ExitStack
    store: Storage
    ready: dict[str, tuple[Device, Worker]] = field(default_factory=dict)

    def of(self, name: str) -> tuple[Device, Worker]:
        if name not in self.ready:
            device = self.store.probed(device_named(name))
            worker = self.stack.enter_context(Worker(backend_of(device), device))
            self.ready[name] = device, worker
        return self.ready[name]


def _imported(line: bytes, store: Storage, bench: Bench, seconds: float) -> tuple[str, str]:
    """What became of a line, and the reason in a sentence."""
    try:
        record: TuningRecord = read_line(line)
        device, worker = bench.of(record.device)
        here = wanted_key(record, device, worker.backend)
        kept = store.get(here.digest)
        if kept is not None and kept.measured is not None:
            return "known", "a measured kernel is kept under its key already"
        tuned = vetted(record, device, worker, time.monotonic() + seconds)
    except (InputError, NoCandidate) as error:
        return "refused", str(error)
    if kept is None or tuned.measured is not None:
        store.put(tuned)
        return "kept", ""
    return "known", "a kernel is kept under its key already, and nothing can be measured here"
