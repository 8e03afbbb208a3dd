"""Compiles and checks the entries of a zoo, several at once, until no time is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mcfuser.batch import state
from mcfuser.batch.entry import Unwanted, do
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.zoo import Entry
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError


@dataclass(frozen=True, slots=True)
class Target:
    """A device's key, and why modules for it cannot run here; None where they can."""

    key: str
    refused: str | None


@dataclass(frozen=True, slots=True)
class Done:
    """An entry with its outcome; `unchanged` says that the outcome is an earlier batch's."""

    entry: Entry
    key: str
    outcome: Outcome
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """An entry to do, the hash of everything that its outcome depends on, and its device."""

    entry: Entry
    key: str
    target: Target


def works(entries: Sequence[Entry]) -> list[Work]:
    """The work of these entries. Raises InputError where a model cannot be read."""
    targets = {name: _target(name) for name in dict.fromkeys(e.device for e in entries)}
    return [Work(e, _key(e, targets[e.device]), targets[e.device]) for e in entries]


def _target(name: str) -> Target:
    device = device_named(name)
    from mcfuser.backends import backend_of
    from mcfuser.measure.worker import Worker

    backend = backend_of(device)
    if backend.on_host:
        return Target(device.key, None)
    with Worker(backend, device, cores=1) as worker:
        return Target(device.key, worker.refused())


def _key(entry: Entry, target: Target) -> str:
    return state.work_key(entry, target.key, target.refused is None)


def run(
    given: Sequence[Work], folder: Path, jobs: int, spent: Callable[[], bool]
) -> Generator[Done]:
    """Yields each entry when it is done: first those whose outcome is kept, then the others, begun
    in their order, `jobs` at a time.

    An outcome is kept below `folder` before it is yielded. Once `spent` returns True, the entries
    being done are ended, and they and the rest are not run. They are also ended where the caller
    leaves this iterator early, as an interrupt does.
    """
    left = []
    for work in given:
        outcome = state.known(folder / work.entry.folder, work.key, work.entry.model.parent)
        if outcome is None:
            left.append(work)
        else:
            yield Done(work.entry, work.key, outcome, unchanged=True)
    ended = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            futures = [
                pool.submit(_done, w, folder, lambda: not (ended.is_set() or spent())) for w in left
            ]
            for future in as_completed(futures):
                yield future.result()
        finally:
            ended.set()


def _done(work: Work, folder: Path, wanted: Callable[[], bool]) -> Done:
    where = folder / work.entry.folder
    if not wanted():
        return left_out(work)
    try:
        state.forget(where)
        outcome = do(work.entry, where, work.target.refused, wanted)
        state.keep(where, work.key, outcome)
    except Unwanted:
        return left_out(work)
    except (InputError, OSError) as error:  # a full disk fails this entry, not the batch
        outcome = Outcome("failed", f"its outcome cannot be kept: {error}")
    return Done(work.entry, work.key, outcome)


def left_out(work: Work) -> Done:
    """The outcome of an entry for which no time was left."""
    return Done(work.entry, work.key, Outcome("not run", "no time was left for it"))
