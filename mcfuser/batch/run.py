"""Compiles and checks the entries of a zoo, several at once, until no time is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcfuser.batch import state
from mcfuser.batch.entry import Unreachable, Unwanted, Wanted, do, seconds_of
from mcfuser.batch.locking import Locking
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.pace import Baseline, judged
from mcfuser.batch.zoo import Entry
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.devices.cpu import unmeasured_cpu
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser.batch.server import ServerClient


@dataclass(frozen=True, slots=True)
class Target:
    """A device's key, why modules for it cannot run here (None where they can), and its
    architecture."""

    key: str
    refused: str | None
    arch: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """An entry with its outcome; `unchanged` says that the outcome is an earlier batch's. `device`
    is Device.key."""

    entry: Entry
    key: str
    device: str
    outcome: Outcome
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """An entry to do, the hash of everything that its outcome depends on, and its device.

    `lock` is the file whose kernels its module is built from, if it is, and `baseline` what it took
    when it was locked. `server` compiles it, if one does.
    """

    entry: Entry
    key: str
    target: Target
    lock: Path | None = None
    baseline: Baseline | None = None
    server: ServerClient | None = None


def works(
    entries: Sequence[Entry],
    locking: Locking | None = None,
    server_of: Callable[[Entry], ServerClient | None] = lambda entry: None,
) -> list[Work]:
    """The work of these entries, under a lock if there is one, and on servers where `server_of`
    gives one. Raises InputError where a model cannot be read, or a server is none of mcfuser."""
    named = dict.fromkeys(e.device for e in entries if e.job is None)
    targets = {name: _target(name) for name in named}
    return [
        _work(e, targets.get(e.device, Target(e.device, "it is a server's")), locking, server_of(e))
        for e in entries
    ]


def _work(
    entry: Entry, target: Target, locking: Locking | None, server: ServerClient | None
) -> Work:
    locked = locking.identity(entry, target.key) if locking is not None else None
    there = (server.shown, server.version) if server is not None else None
    return Work(
        entry,
        state.work_key(entry, target.key, target.refused is None, locked, there),
        target,
        locking.path if locking is not None and locking.exact else None,
        locking.baseline(entry, target.key) if locking is not None else None,
        server,
    )


def _target(name: str) -> Target:
    if name == HOST:
        host = unmeasured_cpu()
        return Target(host.key, None, host.arch)
    device = device_named(name)
    from mcfuser.backends import backend_of
    from mcfuser.measure.worker import Worker

    backend = backend_of(device)
    if backend.on_host:
        return Target(device.key, None, device.arch)
    with Worker(backend, device, cores=1) as worker:
        return Target(device.key, worker.refused(), device.arch)


def run(
    given: Sequence[Work],
    folder: Path,
    jobs: int,
    spent: Callable[[], bool],
    begin: Callable[[Work], None] = lambda work: None,
) -> Generator[Done]:
    """Yields each entry when it is done: first those whose outcome is kept, then the others, begun
    in their order, `jobs` at a time. `begin` is called with each of these as it is begun, in a
    thread of its own.

    An outcome is kept below `folder` before it is yielded. Once `spent` returns True, the entries
    being done are ended, and they and the rest are not run. They are also ended where the caller
    leaves this iterator early, as an interrupt does.
    """
    left = []
    for work in given:
        outcome = state.known(folder / work.entry.folder, work.key, work.entry.model.parent)
        if outcome is None or _measured_again(work, outcome):
            left.append(work)
        else:
            yield _ended(work, outcome, unchanged=True)
    ended = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            futures = [
                pool.submit(_done, w, folder, lambda: not (ended.is_set() or spent()), begin)
                for w in left
            ]
            for future in as_completed(futures):
                yield future.result()
        finally:
            ended.set()


def _done(
    work: Work, folder: Path, wanted: Callable[[], bool], begin: Callable[[Work], None]
) -> Done:
    where = folder / work.entry.folder
    if not wanted():
        return left_out(work)
    begin(work)
    try:
        kept = state.known(where, work.key, work.entry.model.parent)
        if kept is None:
            state.forget(where, work.baseline.module if work.baseline is not None else None)
            outcome = _outcome(work, where, wanted)
            state.keep(where, work.key, outcome)
        else:
            outcome = kept
        outcome = _judged(work, where, outcome, wanted)
    except Unwanted:
        return left_out(work)
    except Unreachable as error:
        return _ended(work, Outcome("unreachable", str(error)))
    except (InputError, OSError) as error:  # a full disk fails this entry, not the batch
        outcome = Outcome("failed", f"it cannot be done: {error}")
        return _ended(work, outcome)
    return _ended(work, outcome, unchanged=kept is not None)


def _outcome(work: Work, where: Path, wanted: Wanted) -> Outcome:
    """Compiles and checks an entry, here or on its server. Raises Unwanted and Unreachable."""
    target = work.target
    if work.server is None:
        return do(work.entry, where, target.refused, wanted, work.lock)
    from mcfuser.batch.remote import do_there  # with an HTTP client, which few batches need

    arch = target.arch if target.refused is None else None
    return do_there(work.entry, work.key, where, work.server, arch, wanted)


def _judged(work: Work, where: Path, outcome: Outcome, wanted: Wanted) -> Outcome:
    """The outcome beside the baseline, which is measured again if need be. Raises Unwanted."""
    if work.baseline is None:
        return outcome

    def measured(folder: Path) -> float | None:
        return seconds_of(work.entry, folder, where / "log.txt", wanted)

    result = judged(outcome, where, work.baseline, measured)
    if result.good and result.mcfuser_seconds != outcome.mcfuser_seconds:
        state.keep(where, work.key, replace(result, baseline_seconds=None))
    return result


def _measured_again(work: Work, outcome: Outcome) -> bool:
    """Whether a kept outcome has a time that must be measured again, for it is too long."""
    if work.baseline is None or outcome.mcfuser_seconds is None:
        return False
    return outcome.mcfuser_seconds > work.baseline.most


def _ended(work: Work, outcome: Outcome, unchanged: bool = False) -> Done:
    if unchanged and work.baseline is not None and outcome.mcfuser_seconds is not None:
        outcome = replace(outcome, baseline_seconds=work.baseline.seconds)
    return Done(work.entry, work.key, work.target.key, outcome, unchanged)


def left_out(work: Work) -> Done:
    """The outcome of an entry for which no time was left."""
    return _ended(work, Outcome("not run", "no time was left for it"))
