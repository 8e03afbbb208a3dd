"""A worker and one job."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from mcfuser.errors import KilledError, ModelError, SpaceError
from mcfuser.process.confined import Stopped
from mcfuser.tune.progress import ChainPlace, Note, Progress
from mcfuser_db import Blobs, Job, Order, Storage
from mcfuser_db.blobs import Incoming
from mcfuser_service import claim, worker
from mcfuser_service.schemas import JobOptions
from mcfuser_service.settings import ServiceSettings
from tests.support.full import sqlite_full


@dataclass
class Made:
    module: bytes = b"module"
    report: dict[str, Any] = field(default_factory=dict)


@dataclass
class Bench:
    """A store with one posted model, and a worker's hands."""

    settings: ServiceSettings
    store: Storage
    blobs: Blobs
    job: Job
    stop: threading.Event
    aborted: threading.Event

    def run(self, compiler: Callable[..., Any]) -> Job:
        """The job as it is after one try."""
        claimed = self.store.claim("w", 3600)
        assert claimed is not None
        worker.perform(
            self.settings, self.store, self.blobs, compiler, claimed, self.stop, self.aborted.set
        )
        return self.found()

    def found(self) -> Job:
        found = self.store.job(self.job.id)
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(claim, "_BEAT", 0.02)
    monkeypatch.setattr(claim, "_WRITE", 0.02)
    monkeypatch.setattr(claim, "_RENEW", 0.02)
    monkeypatch.setattr("mcfuser_db.again.FIRST", 0.0)
    monkeypatch.setattr("mcfuser_service.room._PAUSE", 0.01)
    settings = ServiceSettings(data=tmp_path, job_timeout=3600, grace=0.2)
    store = Storage(settings.database_url)
    blobs = Blobs(settings.blobs)
    options = JobOptions(shape=["x=1x2"], seed=7).model_dump(mode="json")
    job, _ = store.submit(Order("a" * 64, blobs.put(b"model"), 5, "cpu", options))
    yield Bench(settings, store, blobs, job, threading.Event(), threading.Event())
    store.close()


def test_a_job_is_done(bench: Bench) -> None:
    seen = []

    def compiler(
        model: Path, options: JobOptions, cache: Storage, listener: worker.Listener
    ) -> Made:
        listener(Progress("search", 1, 2))
        while bench.found().stage != "search":  # the beat tells it
            time.sleep(0.01)
        seen.append((model.read_bytes(), options.seed, options.shapes, bench.found().stage))
        listener(Progress("search", 2, 2))
        return Made(report={"time": float("inf"), "chains": [{"error": 1e-7}]})

    job = bench.run(compiler)
    assert seen == [(b"model", 7, {"x": (1, 2)}, "search")]
    assert (job.state, job.done, job.total, job.problem) == ("done", 2, 2, None)
    assert job.report == {"time": None, "chains": [{"error": 1e-7}]}
    assert job.module is not None and bench.blobs.read(job.module) == b"module"


def test_a_full_disk_that_a_compile_finds_postpones_the_job(bench: Bench) -> None:
    def compiler(*_: object) -> Made:
        raise SpaceError("the disk has no space for the unpacked archive")

    job = bench.run(compiler)
    assert (job.state, job.attempts, job.stage) == ("queued", 0, "waiting: the disk is full")


def test_what_the_user_can_mend_fails_the_job_at_once(bench: Bench) -> None:
    def compiler(*_: object) -> Made:
        raise ModelError("operator 'Det' (node 'n') is not known")

    job = bench.run(compiler)
    assert job.state == "failed" and job.problem is not None
    assert job.problem["status"] == 422
    assert job.problem["detail"] == "operator 'Det' (node 'n') is not known"


def test_any_other_error_is_tried_three_times(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def compiler(*_: object) -> Made:
        raise RuntimeError("/secret/path")

    with caplog.at_level(logging.ERROR):
        assert [bench.run(compiler).state for _ in range(3)] == ["queued", "queued", "failed"]
    problem = bench.found().problem
    assert problem is not None and problem["status"] == 422
    assert "/secret/path" not in str(problem) and "/secret/path" in caplog.text


def test_a_model_that_crashes_the_compiler_is_not_tried_again(bench: Bench) -> None:
    def compiler(*_: object) -> Made:
        raise Stopped("death", "its process died of signal SIGSEGV", fault=True)

    job = bench.run(compiler)
    assert job.state == "failed" and job.problem is not None
    assert job.problem["status"] == 422 and "SIGSEGV" in job.problem["detail"]


def test_a_compile_that_was_killed_is_tried_again(bench: Bench) -> None:
    def compiler(*_: object) -> Made:
        raise Stopped("death", "its process died of signal SIGKILL")

    job = bench.run(compiler)
    assert (job.state, job.attempts, job.interrupted) == ("queued", 1, 0)


@pytest.mark.parametrize(
    "killed",
    [
        Stopped("death", "the compile's process was killed", outside=True),
        KilledError("the process that ran the module was killed; try again"),
    ],
)
def test_a_compile_that_was_killed_from_outside_costs_no_attempt(
    bench: Bench, killed: Exception
) -> None:
    def compiler(*_: object) -> Made:
        raise killed

    for times in range(1, 6):
        job = bench.run(compiler)
        assert (job.state, job.attempts, job.interrupted) == ("queued", 0, times)
    assert "was killed" in bench.store.log(job.id).lines[-1].words
    assert bench.run(lambda *_: Made()).state == "done"


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_lost_model_fails_at_once(bench: Bench, damage: str) -> None:
    path = bench.blobs.path(bench.job.model)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"mod" if damage == "cut" else b"other")
    job = bench.run(lambda *_: Made())
    assert job.state == "failed" and job.problem is not None
    assert (job.problem["status"], job.problem["type"]) == (410, "urn:mcfuser:problem:lost")
    assert "post it again" in job.problem["detail"]


def full_disk(*_: object) -> Made:
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise RuntimeError("the linker failed") from error  # as a compiler may tell it


def full_disk_of_the_child(*_: object) -> Made:
    raise Stopped("died", "it ended", "OSError: [Errno 28] No space left on device")


@pytest.mark.parametrize("where", ["compile", "child", "module", "database"])
def test_a_full_disk_lets_the_job_wait(
    bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than it has attempts, and it is done when there is room again."""
    compiler: Callable[..., Made] = lambda *_: Made(b"module" * 100_000)  # noqa: E731
    for _ in range(5):
        with monkeypatch.context() as patched:
            if where == "compile":
                job = bench.run(full_disk)
            elif where == "child":
                job = bench.run(full_disk_of_the_child)
            elif where == "module":
                patched.setattr(Incoming, "write", full_disk)
                job = bench.run(compiler)
            else:
                patched.setattr(Storage, "finish", sqlite_full)
                job = bench.run(compiler)
        assert (job.state, job.attempts, job.problem) == ("queued", 0, None)
        assert job.stage == "waiting: the disk is full" and job.due is not None
        assert bench.store.claim("w", 60) is None  # not before it is due
        make_due(bench)
    assert bench.run(compiler).state == "done"


def make_due(bench: Bench) -> None:
    with bench.store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET due = NULL")


@pytest.mark.parametrize(
    ("write", "times", "unanswered"),
    [("finish", 3, False), ("finish", 1, True), ("fail", 3, False)],
)
def test_a_short_outage_at_the_end_costs_no_second_compile(
    bench: Bench, write: str, times: int, unanswered: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Whether the model compiles or is refused, and also where the write was done that was not
    answered."""
    compiled, failed, whole = [], [], getattr(Storage, write)

    def stumbling(*words: Any) -> Any:
        if len(failed) == times:
            return whole(*words)
        failed.append(1)
        if unanswered:
            whole(*words)
        raise OperationalError("UPDATE", {}, RuntimeError("server closed the connection"))

    def compiler(*_: object) -> Made:
        compiled.append(1)
        if write == "fail":
            raise ModelError("no")
        return Made()

    monkeypatch.setattr(claim, "_AGAIN", 0.01)
    monkeypatch.setattr(Storage, write, stumbling)
    with caplog.at_level(logging.INFO, "mcfuser_service.worker"):
        job = bench.run(compiler)
    assert (len(compiled), len(failed), job.attempts) == (1, times, 1)
    assert job.state == ("failed" if write == "fail" else "done")
    assert caplog.messages[-1] == ("job refused" if write == "fail" else "job done")
    if write == "finish":
        assert job.module is not None and bench.blobs.read(job.module) == b"module"


@pytest.mark.parametrize("event", ["cancelled", "stopped"])
def test_a_result_that_cannot_be_written_is_given_up_where_nobody_waits_for_it(
    bench: Bench, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def silent(*_: object) -> bool:
        calls.append(1)
        if len(calls) == 3 and event == "stopped":
            bench.stop.set()
        elif len(calls) == 3:
            bench.store.cancel(bench.job.id)
        raise OperationalError("UPDATE", {}, RuntimeError("server closed the connection"))

    monkeypatch.setattr(claim, "_AGAIN", 0.01)
    monkeypatch.setattr(Storage, "finish", silent)
    job = bench.run(lambda *_: Made())
    assert (job.state, job.claim) == ("cancelled" if event == "cancelled" else "queued", None)
    assert len(calls) >= 3 and not bench.aborted.is_set()


def test_a_silent_database_costs_no_attempt(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is silent for longer than a lease."""
    bench.settings = bench.settings.model_copy(update={"lease": 0.2})
    monkeypatch.setattr(claim, "_AGAIN", 0.05)
    calls = []

    def silent(*_: object) -> bool:
        calls.append(1)
        raise OperationalError("UPDATE", {}, RuntimeError("server closed the connection"))

    postpone = Storage.postpone
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "finish", silent)
        patched.setattr(
            Storage, "postpone", lambda *a: silent() if len(calls) < 4 else postpone(*a)
        )
        job = bench.run(lambda *_: Made())
    assert (job.state, job.attempts) == ("queued", 0)
    assert job.stage == "waiting: the database does not answer"


@pytest.mark.thorough
def test_a_worker_outlives_a_database_that_cannot_be_claimed_from(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, whole = [], Storage.claim

    def silent(store: Storage, worker: str, lease: float) -> Job | None:
        calls.append(1)
        if len(calls) < 4:
            raise OperationalError("SELECT", {}, RuntimeError("no answer"))
        if len(calls) > 4:
            bench.stop.set()
        return whole(store, worker, lease)

    def compiler(*_: object) -> Made:
        return Made()

    monkeypatch.setattr(Storage, "claim", silent)
    settings = bench.settings.model_copy(update={"poll": 0.01})
    worker.work(settings, bench.store, bench.blobs, compiler, "w", bench.stop, bench.aborted.set)
    assert len(calls) == 5 and bench.found().state == "done"


def test_a_cancelled_job_stops_its_compile(bench: Bench) -> None:
    def compiler(
        model: Path, options: JobOptions, cache: Storage, listener: worker.Listener
    ) -> Made:
        bench.store.cancel(bench.job.id)
        for number in range(60_000):
            time.sleep(0.01)
            try:
                listener(Progress("search", number, 60_000))
            except Exception:
                pytest.fail("an interruption can be taken for a failed try")
        raise AssertionError("never interrupted")

    assert bench.run(compiler).state == "cancelled"
    assert not bench.aborted.is_set()


def test_a_stopped_worker_gives_its_job_back(bench: Bench) -> None:
    def compiler(
        model: Path, options: JobOptions, cache: Storage, listener: worker.Listener
    ) -> Made:
        bench.stop.set()
        listener(Progress("search", 0, 0))
        raise AssertionError("never interrupted")

    job = bench.run(compiler)
    assert (job.state, job.attempts, job.claim) == ("queued", 0, None)


def test_a_job_has_its_time_and_a_hanging_one_ends_the_worker(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(update={"job_timeout": 0.1})

    def compiler(*_: object) -> Made:
        assert bench.aborted.wait(600)
        return Made()

    job = bench.run(compiler)
    assert job.state == "failed" and job.problem is not None
    assert job.problem["status"] == 422 and "0.1 s" in job.problem["detail"]


def test_a_worker_takes_job_after_job_until_it_is_stopped(bench: Bench) -> None:
    done = []

    def compiler(model: Path, *_: object) -> Made:
        done.append(model.read_bytes())
        if len(done) == 2:
            bench.stop.set()
        return Made()

    digest = bench.blobs.put(b"second")
    bench.store.submit(Order("b" * 64, digest, 6, "cpu", bench.job.options))
    worker.work(
        bench.settings, bench.store, bench.blobs, compiler, "w", bench.stop, bench.aborted.set
    )
    assert done == [b"model", b"second"]


def test_an_assignment_arrives_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password and what is not at its default included, whatever the environment says."""
    settings = ServiceSettings(
        data=tmp_path, database="postgresql://me:hunter2@db/mcfuser", workers=3, grace=0.5,
        allowed_hosts="a.example, b.example",
    )  # fmt: skip
    told = worker.Assignment(settings, "mcfuser_service.worker:load_compiler", "here:0")
    line = told.to_json()
    monkeypatch.setenv("MCFUSER_WORKERS", "7")
    assert worker.Assignment.from_json(line) == told
    assert told.loaded() is worker.load_compiler
    assert "hunter2" not in repr(told)


def test_the_log_of_a_job_says_what_was_done_in_order(bench: Bench) -> None:
    def failing(model: Path, options: JobOptions, cache: Storage, listener: Any) -> Made:
        listener(Progress("import"))
        listener(Progress("measure", 0, 9, chain=ChainPlace(1, 2, "attention")))
        listener(Progress("measure", 5, 9, chain=ChainPlace(1, 2, "attention"), left=60.0))
        listener(Note("chain 1 of 2, 'attention': 1 kernel: faster"))
        raise RuntimeError("/secret/path")

    bench.run(failing)
    bench.run(lambda *_: Made())
    words = [line.words for line in bench.store.log(bench.job.id).lines]
    assert words == [
        f"posted for cpu: model {bench.job.model}",
        "attempt 1 of 3 begins; worker 'w'",
        "import",
        "measure chain 1 of 2: attention",
        "chain 1 of 2, 'attention': 1 kernel: faster",
        "the attempt failed (RuntimeError); the server's log says why; queued again, to be tried "
        "in 0 s",
        "attempt 2 of 3 begins; worker 'w'",
        "done: a module of 6 bytes",
    ]


def test_what_is_told_after_the_claim_was_lost_is_in_the_log(bench: Bench) -> None:
    def compiler(model: Path, options: JobOptions, cache: Storage, listener: Any) -> Made:
        bench.store.cancel(bench.job.id)
        listener(Note("chain 1 of 1, 'attention': no kernel"))
        return Made()

    assert bench.run(compiler).state == "cancelled"
    words = [line.words for line in bench.store.log(bench.job.id).lines]
    assert words[-2:] == ["cancelled", "chain 1 of 1, 'attention': no kernel"]


def test_progress_is_kept_whole_while_a_job_runs(bench: Bench) -> None:
    told = Progress("measure", 3, 9, 4, 1, 2e-6, ChainPlace(2, 5, "attention"), 60.0)

    def compiler(model: Path, options: JobOptions, cache: Storage, listener: Any) -> Made:
        listener(told)
        while (found := bench.found()).progress is None:
            time.sleep(0.01)
        assert Progress.from_json(found.progress) == told
        assert found.stage == "measure chain 2 of 5" and (found.done, found.total) == (3, 9)
        assert found.expected is not None
        left = found.expected - datetime.now(UTC)
        assert 0 < left.total_seconds() <= 60
        return Made()

    job = bench.run(compiler)
    assert (job.state, job.progress, job.expected) == ("done", None, None)
