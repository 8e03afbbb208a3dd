"""The server answers as /openapi.json says: Schemathesis asks it, always the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI

from mcfuser.errors import ModelError
from mcfuser_db import Blobs, KeyGrant, Order, Storage
from mcfuser_db.api_keys import make_key
from mcfuser_service.app import create_app
from mcfuser_service.missed import JobSnapshot
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.watch import Follower
from service_contract import Explored, Known, configured, explored
from tests.support.kernels import tuned

MODEL = b"model"
REPORT: dict[str, Any] = {
    "device": "cpu", "arch": "x86", "units": 2, "seed": 0, "times": "measured", "chains": [],
    "products": [], "seconds": {}, "versions": {}, "inputs": [], "outputs": [],
}  # fmt: skip
LOOKUP = {
    "answer": "miss", "asked": {}, "kernel": None, "candidates": 0, "nearest": [], "sentences": [],
}  # fmt: skip


async def inspect(model: Path, shapes: Mapping[str, object]) -> None:
    if model.read_bytes() != MODEL:
        raise ModelError("the model is not ONNX; give an ONNX file")


async def explain(chain: str, device: str | None, dtype: str) -> dict[str, Any]:
    return LOOKUP


def explored_app(app: FastAPI, known: Known) -> Explored:
    config = configured(known, seed=0, seconds=None, examples=2)
    return explored(schemathesis.openapi.from_asgi("/openapi.json", app, config=config), known)


async def nothing_new(follower: Follower, version: int, seconds: float) -> list[JobSnapshot]:
    """Jobs do not change here: a wait is over at once, and so is a stream of events."""
    follower.ended = True
    return []


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FastAPI, Known]:
    """An application with jobs in every state and a kernel."""
    monkeypatch.setattr(Follower, "after", nothing_new)
    settings = ServiceSettings(data=tmp_path, allowed_hosts="testserver")
    store, blobs = Storage(settings.database_url), Blobs(settings.blobs)
    app = create_app(settings, store, blobs, lambda: 1, inspect, explain=explain)
    jobs = []
    for state in ("done", "failed", "running", "cancelled", "queued"):
        order = Order(state.rjust(64, "0"), "b" * 64, 5, "cpu", {"device": "cpu"})
        job = store.submit(order)[0]
        jobs.append(str(job.id))
        if state == "cancelled":
            store.cancel(job.id)
        elif state != "queued":
            held = store.claim("w", 3600)
            assert held is not None and held.claim is not None
            if state == "done":
                store.finish(held.claim, blobs.put(b"\x7fELF module"), 11, REPORT)
            elif state == "failed":
                problem = {"type": "about:blank", "title": "no", "status": 422, "detail": "no"}
                store.fail(held.claim, problem)
    key = "a" * 64
    store.put(replace(tuned(), key=key))
    row, text = make_key(store, KeyGrant("all", ("admin",)))
    other = make_key(store, KeyGrant("other", ("read",)))[0]
    keys = [row.id, other.id]
    return app, Known(jobs, [key], keys, [MODEL], text.words, row.id)


@pytest.mark.thorough
def test_every_answer_is_as_documented(known: tuple[FastAPI, Known]) -> None:
    app, there = known
    found = explored_app(app, there)
    assert not found.errors
    assert not found.failures, "\n".join(f"{one}" for one in found.failures)
    seen = {name.split()[1] for name in found.answers}
    assert {"200", "201", "202", "204", "401", "404", "405", "409", "422"} <= seen
    assert sum(found.answers.values()) > 500


def test_an_answer_that_is_not_documented_is_found(known: tuple[FastAPI, Known]) -> None:
    app, there = known
    del app.openapi()["paths"]["/v1/jobs/{id}"]["get"]["responses"]["404"]
    for path in [p for p in app.openapi()["paths"] if p != "/v1/jobs/{id}"]:
        del app.openapi()["paths"][path]
    found = explored_app(app, there)
    assert ("status_code_conformance", "GET /v1/jobs/{id}") in {
        (one["check"], one["operation"]) for one in found.failures
    }
