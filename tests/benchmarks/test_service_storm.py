"""The storm: its models, and what it says of a job."""

from __future__ import annotations

import random
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import service_storm
import storm_child
from mcfuser.graph.inspection import inspect

MODULE = b"module"
LOG = (
    "2026-11-23T13:08:12Z posted for cpu: model 9f86\n"
    "2026-11-23T13:08:12Z attempt 1 of 3 begins; worker 'w:0'\n"
    "2026-11-23T13:08:19Z done: a module of 6 bytes\n"
)
AGAIN = "2026-11-23T13:08:20Z attempt 1 of 3 begins; worker 'w:1'\n"


def job(state: str = "done") -> dict[str, Any]:
    module = {"sha256": sha256(MODULE).hexdigest()}
    return {"state": state, "module": module, "report": {"model": {"sha256": "d"}}}


@pytest.mark.parametrize(
    ("given", "log", "module", "wrong", "begun"),
    [
        (job(), LOG, MODULE, set(), 1),
        (job(), AGAIN + LOG, MODULE, set(), 2),
        (job(), LOG + LOG, MODULE, {"twice"}, 2),
        (job(), LOG, b"another", {"wrong"}, 1),
        (job(), LOG, None, {"wrong"}, 1),
        (job("failed"), AGAIN, None, {"blamed"}, 1),
        (job("queued"), AGAIN, None, {"lost"}, 1),
        (job(), AGAIN, MODULE, {"lost"}, 1),
    ],
)
def test_what_is_wrong_with_a_job(
    given: dict[str, Any], log: str, module: bytes | None, wrong: set[str], begun: int
) -> None:
    assert service_storm.judged(given, log, "d", module) == (wrong, begun)


@pytest.mark.parametrize(
    ("versions", "whole"), [([1, 2, 3], True), ([1, 3], False), ([1, 2, 2], False), ([2], False)]
)
def test_events_are_one_of_each_version(versions: list[int], whole: bool) -> None:
    told = service_storm.Told()
    told.add({"retry": "2000"})
    for version in versions:
        told.add({"event": "progress", "data": "{}", "id": str(version)})
    told.add({"event": "gap", "data": '{"after": 3, "oldest": null}'})
    assert (told.is_whole, told.states) == (whole, [])
    told.add({"event": "state", "data": '{"state": "done"}', "id": str(len(versions) + 1)})
    assert (told.is_whole, told.states) == (whole, ["done"])


def test_a_module_of_another_model_is_wrong() -> None:
    assert service_storm.judged(job(), LOG, "e", MODULE)[0] == {"wrong"}


def test_models_are_good_and_no_two_have_the_same_extents() -> None:
    models = [service_storm.model(i, True) for i in range(500)]
    assert len(set(models)) == 500
    assert service_storm.PRETENDED.encode() in service_storm.model(3, False)
    assert service_storm.PRETENDED.encode() not in models[3]
    for one in models[::100]:
        inspect(one, {})


def test_it_kills_as_often_as_asked_while_jobs_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: Counter[str] = Counter()
    done = iter(range(10_000))
    monkeypatch.setattr("service_storm.time.sleep", lambda seconds: None)
    monkeypatch.setattr("service_storm.killed", lambda server, kind, rng: kills.update([kind]))
    told = service_storm.storm(None, lambda: next(done), 500, 50, random.Random(0))
    assert told == kills and kills.total() == 50 and set(kills) == set(service_storm.KINDS)
    assert next(done) <= 500


def test_a_pretended_module_names_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storm_child.STEP", 0.0)
    (tmp_path / "m").write_bytes(b"a model")
    told: list[object] = []
    answer = storm_child.answer({"model": str(tmp_path / "m")}, told.append)
    assert answer["sha256"] in answer["module"] and len(told) >= 5
    assert answer["sha256"] == sha256(b"a model").hexdigest()
