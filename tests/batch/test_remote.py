"""Batches on a server: a real application, a worker that pretends, and deaths in between."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mcfuser.batch.state import forget
from mcfuser.errors import ModelError
from mcfuser.signing.folder import ENVELOPE, verify
from mcfuser.signing.statement import Subject
from mcfuser_service.attestation import attested
from tests.support.served import Served, serving
from tests.support.signatures import private_key, signed_report
from tests.support.zoo import Zoo

KEY = private_key()
MODULE = b"module of a server"
REPORT = {
    "chains": [{"name": "c", "fused": True, "kernels": []}], "device": "cpu", "arch": "here",
    "check": {"error": 2e-7, "tolerance": 1e-4},
}  # fmt: skip


async def inspect(model: Path, shapes: Mapping[str, Any]) -> None:
    if model.read_bytes() == b"bad":
        raise ModelError("the model is not ONNX")


class Serving:
    """A server whose worker does what a model's bytes say."""

    def __init__(self, served: Served) -> None:
        self.served, self.ended, self.gate = served, threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{served.port}"
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        store, blobs = self.served.store, self.served.blobs
        while not self.ended.wait(0.02):
            job = store.claim("w", 3600)
            if job is None or job.claim is None:
                continue
            what = blobs.read(job.model)
            if what == b"wait":
                while not (self.gate.wait(0.02) or self.ended.is_set()):
                    pass
            if what == b"refused":
                store.fail(job.claim, {"detail": "an operator is not known"})
                continue
            other = {b"far": {"arch": "elsewhere"}, b"wrong": {
                "arch": "elsewhere", "check": {"error": 0.5, "tolerance": 1e-4},
            }, b"skipped": {"arch": "elsewhere", "check": {"skipped": "no GPU"}}}  # fmt: skip
            report = REPORT | other.get(what, {})
            if what == b"signed":
                report = REPORT | signed_report(MODULE)
            digest = blobs.put(MODULE)
            envelope = attested(KEY, report, Subject.of(MODULE)) if what == b"signed" else None
            store.finish(job.claim, digest, len(MODULE), report, envelope)

    def jobs(self) -> list[str]:
        return [j.state for j in self.served.store.jobs()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "data").mkdir()
    with serving(tmp_path / "data", inspect) as served:
        running = Serving(served)
        yield running
        running.ended.set()
        running.thread.join()


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    (tmp_path / "zoo").mkdir()
    return Zoo(tmp_path / "zoo")


def test_modules_are_compiled_there_and_checked_here(zoo: Zoo, server: Serving) -> None:
    zoo.holds('shapes = { x = [1, 4] }\ntrials = 3\ntimeout = "90s"', a="good", b="far")
    status, told, wrong = zoo.batch("--server", server.url, "--jobs", "2")
    assert (status, wrong) == (0, ""), told
    a, b = zoo.report["entries"]
    assert (a["error"], a["mcfuser_seconds"], a["fused"]) == (1e-7, 1e-3, 1)
    assert (b["error"], b["mcfuser_seconds"]) == (2e-7, None), "its CPU is another one"
    assert (zoo.output / a["folder"] / "module.so").read_bytes() == MODULE
    assert a["module"] == hashlib.sha256(MODULE).hexdigest()
    report = json.loads((zoo.output / a["folder"] / "report.json").read_text())
    assert report["shapes"] == {"x": [1, 4]}
    asked = server.served.store.jobs()[0].options
    assert (asked["shape"], asked["trials"], asked["timeout"]) == (["x=1x4"], 3, 90.0)
    assert not zoo.begun(), "nothing is compiled here"
    for document in ("report.json", "junit.xml", "summary.md", "report.html"):
        assert (zoo.output / document).exists()
    status, told, _ = zoo.batch("--server", server.url)
    assert status == 0 and "2 of 2 unchanged" in told and len(server.jobs()) == 2


def test_what_a_server_signs_is_a_signed_folder(zoo: Zoo, server: Serving) -> None:
    """Where the module is run here, too, and until the entry is done anew."""
    zoo.holds("shapes = { x = [1, 4] }", a="signed")
    assert zoo.batch("--server", server.url)[0] == 0
    (entry,) = zoo.report["entries"]
    assert entry["mcfuser_seconds"] == 1e-3, "it was run here"
    folder = zoo.output / entry["folder"]
    assert verify(folder, KEY.public).wrong == ()
    forget(folder)
    assert not (folder / ENVELOPE).exists()


def test_what_fails_there_fails_here(zoo: Zoo, server: Serving) -> None:
    zoo.holds(a="bad", b="refused", c="wrong", d="skipped", e="good")
    assert zoo.batch("--server", server.url, "--jobs", "5")[0] == 1
    assert zoo.states() == {
        "a": "failed", "b": "failed", "c": "disagreed", "d": "unchecked", "e": "passed",
    }  # fmt: skip
    reasons = [e["reason"] for e in zoo.report["entries"]]
    assert "refuses it: the model is not ONNX" in reasons[0]
    assert reasons[1] == "an operator is not known"
    assert "differ from onnxruntime's by 5.0e-01" in reasons[2] and "no GPU" in reasons[3]


@pytest.mark.thorough
def test_a_batch_that_died_posts_nothing_twice(zoo: Zoo, server: Serving) -> None:
    zoo.holds(a="good", b="wait", c="fine")
    process = zoo.start("--server", server.url)
    wait_for(lambda: server.jobs() == ["running", "done"])
    wait_for(lambda: any(zoo.output.glob("entries/b*/job.json")))
    process.kill()
    process.communicate()
    server.gate.set()
    status, told, _ = zoo.batch("--server", server.url)
    assert status == 0 and "1 of 3 unchanged" in told
    assert server.jobs() == ["done"] * 3


@pytest.mark.thorough
def test_a_job_that_is_lost_is_posted_again(zoo: Zoo, server: Serving) -> None:
    zoo.holds(a="wait")
    status, _, _ = zoo.batch("--server", server.url, "--timeout", "2s")
    assert status == 3 and len(server.jobs()) == 1
    (noted,) = zoo.output.glob("entries/*/job.json")
    document = json.loads(noted.read_text())
    document["job"] = "04b9f73c-a4b6-46e5-add7-4601fb1225bf"
    noted.write_text(json.dumps(document))
    server.gate.set()
    assert zoo.batch("--server", server.url)[0] == 0
    assert server.jobs() == ["done"], "equal work is one job"


def test_a_server_that_cannot_be_reached_is_status_4(zoo: Zoo) -> None:
    zoo.holds(a="good", b="fine")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    status, told, _ = zoo.batch("--server", f"http://127.0.0.1:{port}")
    assert status == 4 and "2 unreachable" in told
    assert zoo.report["status"] == 4 and (zoo.output / "report.html").exists()
    assert "cannot be reached" in zoo.report["entries"][0]["reason"]


def test_jobs_of_a_server_are_entries(zoo: Zoo, server: Serving) -> None:
    zoo.holds(a="good", b="refused")
    assert zoo.batch("--server", server.url)[0] == 1
    names = [str(j.id) for j in server.served.store.jobs()][::-1]
    none = "04b9f73c-a4b6-46e5-add7-4601fb1225bf"
    jobs = [f"{server.url}/v1/jobs/{n}" for n in (*names, none)]
    (zoo.folder / "zoo.toml").write_text(f"[[models]]\nfiles = {json.dumps(jobs)}\n")
    status, _, wrong = zoo.batch()
    assert (status, wrong) == (1, "")
    first, second, third = zoo.report["entries"]
    assert (first["state"], first["error"], first["name"]) == ("passed", 2e-7, jobs[0])
    assert second["reason"] == "an operator is not known"
    assert "job 04b9f73c-a4b6-46e5-add7-4601fb1225bf is not there" in third["reason"]
    assert (zoo.output / first["folder"] / "module.so").read_bytes() == MODULE


def test_a_server_builds_from_no_lock(zoo: Zoo) -> None:
    zoo.holds(a="good")
    lock = str(zoo.folder / "mcfuser.lock")
    assert zoo.batch("--lock", lock, "--update-lock")[0] == 0
    status, _, wrong = zoo.batch("--lock", lock, "--locked", "--server", "http://host")
    assert status == 2 and "--locked builds here" in wrong


def wait_for(done) -> None:
    while not done():
        time.sleep(0.02)
