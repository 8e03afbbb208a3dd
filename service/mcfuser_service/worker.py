"""A worker, which claims jobs and compiles them, one at a time.

`python -m service.worker` runs a single worker; `mcfuser serve` starts its own.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from mcfuser.errors import InputError, KilledError, LimitError, SpaceError
from mcfuser.finite import finite
from mcfuser.process.confined import Stopped
from mcfuser.signing.key import SigningKey
from mcfuser.signing.statement import Subject
from mcfuser.tune.progress import Listener
from mcfuser_db import Blobs, Job, LostBlob, Storage, StorageError, is_full
from mcfuser_service import logs
from mcfuser_service.attestation import attested, signing_key
from mcfuser_service.beating import beating
from mcfuser_service.claim import Claim, Interrupted
from mcfuser_service.idle import IdleTime
from mcfuser_service.opening import opened
from mcfuser_service.outage import Outage
from mcfuser_service.problems import problem
from mcfuser_service.room import claimed, guarded
from mcfuser_service.schemas import JobOptions
from mcfuser_service.settings import ServiceSettings, read_settings

log = logging.getLogger(
    "mcfuser_service.worker"
)  # not __name__, which is __main__ if run by itself


class CompiledOutput(Protocol):
    """A compiled module and its report, as a compiler gives them."""

    @property
    def module(self) -> bytes | mmap: ...
    @property
    def report(self) -> Mapping[str, Any]: ...


CompileFunction = Callable[[Path, JobOptions, Storage, Listener], CompiledOutput]
CompilerFactory = Callable[[ServiceSettings], CompileFunction]


def load_compiler(settings: ServiceSettings) -> CompileFunction:
    """mcfuser's own compiler, which compiles in a process that can be ended at any time."""
    from mcfuser_service.compiler import Compiler as Confining

    return Confining(settings)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a server tells a worker that it starts: the settings, the worker's name, and `load`, the
    name of a CompilerFactory, as `mcfuser_service.worker:load_compiler`."""

    settings: ServiceSettings
    load: str
    name: str

    def to_json(self) -> str:
        return json.dumps(
            {"settings": self.settings.revealed(), "load": self.load, "name": self.name}
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        read = json.loads(text)
        return cls(ServiceSettings(**read["settings"]), read["load"], read["name"])

    def loaded(self) -> CompilerFactory:
        module, _, function = self.load.partition(":")
        factory: CompilerFactory = getattr(import_module(module), function)
        return factory


def work(
    settings: ServiceSettings,
    store: Storage,
    blobs: Blobs,
    compiler: CompileFunction,
    name: str,
    stop: threading.Event,
    abort: Callable[[], None],
    key: SigningKey | None = None,
) -> None:
    """Does jobs until `stop` is set; `abort` ends a compile that cannot be interrupted. Modules are
    signed where there is a `key`."""
    idle, outage = IdleTime(settings, store, stop), Outage(log, f"worker '{name}'")
    while not stop.is_set():
        job = claimed(store, name, settings.lease, outage, stop)
        if job is None:
            idle.use()
            stop.wait(settings.poll)
            continue
        perform(settings, store, blobs, compiler, job, stop, abort, key)
        idle.ended()


def perform(
    settings: ServiceSettings,
    store: Storage,
    blobs: Blobs,
    compiler: CompileFunction,
    job: Job,
    stop: threading.Event,
    abort: Callable[[], None],
    key: SigningKey | None = None,
) -> None:
    """Does one claimed job, and records how it ended if the claim is still valid then."""
    begun = time.monotonic()
    with Claim(store, job, settings, stop, abort) as claim:
        ended = guarded(
            lambda: _attempt(store, blobs, compiler, job, claim, key), store, claim.token, stop
        )
        claim.figures.keep(store, job, ended)
    log.info(
        "job %s",
        ended,
        extra={
            "job": job.id,
            "device": job.device,
            "attempt": job.attempts,
            "seconds": time.monotonic() - begun,
        },
    )


def _attempt(
    store: Storage,
    blobs: Blobs,
    compiler: CompileFunction,
    job: Job,
    claim: Claim,
    key: SigningKey | None,
) -> str:
    try:
        model = blobs.whole(job.model)
        made = compiler(model, JobOptions(**job.options), store, claim.listen)
        claim.flush()
        claim.check()
    except (Interrupted, Exception) as error:
        claim.flush()  # the log has what led to it before what came of it
        return _ended(error, store, job, claim)
    module = blobs.put(made.module)
    report, subject = finite(made.report), Subject(module, len(made.module))
    signed = attested(key, report, subject)
    claim.figures.cache = made.report.get("cache") or {}
    kept = claim.written(
        lambda: store.finish(claim.token, module, subject.size, report, signed)
    )  # fmt: skip
    return "done" if kept or _is_done(store, job, module) else "lost"


def _is_done(store: Storage, job: Job, module: str) -> bool:
    """Whether the job has this module: a write that was never answered may have been done."""
    found = store.job(job.id)
    return found is not None and (found.state, found.module) == ("done", module)


def _ended(error: Interrupted | Exception, store: Storage, job: Job, claim: Claim) -> str:
    """Records why an attempt has no result. Raises the error where the database does not answer or
    a disk is full (service.room)."""
    match error:
        case Interrupted():
            return "given back" if store.give_back(claim.token) else "interrupted"
        case LimitError():
            kind = "timed-out" if error.what == "time" else "out-of-memory"
            return _refused(store, claim, problem(kind, str(error)))
        case SpaceError():
            raise OSError(errno.ENOSPC, str(error)) from None
        case KilledError():
            return _spared(store, claim, str(error))
        case InputError():
            return _refused(store, claim, problem("bad-model", str(error)))
        case LostBlob():
            lost = problem("lost", f"the model of job {job.id} is no longer kept; post it again")
            log.error("%s", error, extra={"job": job.id})
            kept = claim.written(lambda: store.fail(claim.token, lost))
            return "failed" if kept else "lost"
        case _ if isinstance(error, StorageError) or is_full(error):
            raise error
        case Stopped():
            log.error("the compile's process: %s\n%s", error, error.words, extra={"job": job.id})
            if error.fault:
                return _refused(store, claim, _crash(error))
            if error.outside:
                return _spared(store, claim, "the compile's process was killed")
            why = f"the compile's process was stopped: {error}"
        case _:
            log.error("job raised", exc_info=error, extra={"job": job.id, "attempt": job.attempts})
            why = f"the attempt failed ({type(error).__name__}); the server's log says why"
    return "retried" if store.retry(claim.token, why) else "lost"


def _refused(store: Storage, claim: Claim, found: Mapping[str, Any]) -> str:
    return "refused" if claim.written(lambda: store.fail(claim.token, found)) else "lost"


def _spared(store: Storage, claim: Claim, why: str) -> str:
    """Queues a job again whose process was killed from outside; gives how its attempt ended."""
    return "interrupted" if store.spare(claim.token, why) else "lost"


def _crash(error: Stopped) -> dict[str, Any]:
    return problem(
        "crashed", f"the compiler does not survive this model: {error}; export it another way"
    )


def run(settings: ServiceSettings, load: CompilerFactory, name: str) -> None:
    """Runs a worker process until SIGTERM or SIGINT; waits for a database that does not answer.

    Two processes must not have the same name: the jobs held under it are taken back at the start.
    """
    logs.configure(settings.log_level)
    os.umask(0o077)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    key = signing_key(settings)
    store = opened(settings.database_url, f"worker '{name}'", stop, partial(_take_back, name))
    if store is None:
        return
    blobs = Blobs(settings.blobs)
    compiler = load(settings)
    with beating(store, name):
        log.info("worker ready", extra={"worker": name, "pid": os.getpid()})
        work(settings, store, blobs, compiler, name, stop, _end_group, key)
    store.close()


def _take_back(name: str, store: Storage) -> None:
    """Takes back the jobs that a worker of the same name held when it died."""
    if (back := store.release(name)) > 0:
        log.warning("took back jobs", extra={"worker": name, "jobs": back})


def _end_group() -> NoReturn:
    """Ends this process at once, and its process group if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(os.EX_SOFTWARE)  # it leads no group, or is the first process of a container


def main() -> int:
    """Runs a single worker on a database that other workers may use, too."""
    try:
        settings = read_settings()
        run(
            settings, load_compiler, settings.worker_name or f"{socket.gethostname()}:{os.getpid()}"
        )
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
