"""Candidates in T4: what the format asks for is there, and says what was measured."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from mcfuser.tune.t4 import invalidity, t4_document
from mcfuser.tune.tried import Tried
from tests.support.records import searched

WHEN = datetime(2026, 11, 23, 12, tzinfo=UTC)
KNOBS = {"unroll": 4, "width": None, "packed": True}
WRONG = "3 elements too far off"
TRIED = [
    Tried("a0a1a2a3", {"a0": 8, "a1": 16}, None, 1, True, KNOBS, 2.5e-6, 1e-7),
    Tried("a0a1a2a3", {"a0": 4, "a1": 4}, "a2", 3, True, KNOBS, None, None, WRONG),
]  # fmt: skip
WORDS = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}


def check(document: dict[str, Any]) -> None:
    """What the schemas of T4 1.0.0 for results and for metadata ask for, in our words."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", document["schema_version"])
    environment = document["metadata"]["environment"]
    assert all(isinstance(words, str) for words in environment["requirements"])
    assert isinstance(environment["device_query"], dict)
    assert isinstance(document["metadata"]["hardware"]["hardware_description"], list)
    for result in document["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert isinstance(result["timestamp"], str) and isinstance(result["objectives"], list)
        assert result["invalidity"] in WORDS and type(result["correctness"]) is int
        assert all(isinstance(value, dict) is False for value in result["configuration"].values())
        assert all(type(ms) is float for ms in result["times"]["runtimes"])
        for measurement in result["measurements"]:
            assert isinstance(measurement["name"], str) and isinstance(measurement["unit"], str)
            assert isinstance(measurement["value"], (int, float, str, list))


def test_valid_and_failed_candidates_are_results() -> None:
    document = t4_document(searched(), TRIED, WHEN)
    check(json.loads(json.dumps(document)))
    good, bad = document["results"]
    first, second, *_ = (a.name for a in searched().chain.axes)
    assert good["configuration"] == {
        "expression": "".join(a.name for a in searched().chain.axes)[:4],
        f"tile_{first}": 8, f"tile_{second}": 16,
        "split": "none", "parts": 1, "shifts": True, **KNOBS,
    }  # fmt: skip
    assert good["times"] == {"runtimes": [pytest.approx(0.0025)]} and good["correctness"] == 1
    assert good["measurements"][0] == {"name": "time", "value": pytest.approx(0.0025), "unit": "ms"}
    assert good["timestamp"] == "2026-11-23T12:00:00+00:00"
    assert (bad["invalidity"], bad["correctness"], bad["times"]) == (
        "correctness", 0, {"runtimes": []}
    )  # fmt: skip
    assert bad["measurements"] == [
        {"name": "reason", "value": WRONG, "unit": ""}
    ]  # fmt: skip


def test_the_metadata_says_of_what_the_results_are() -> None:
    metadata = t4_document(searched(), [], WHEN)["metadata"]
    assert metadata["kernel"]["key"] == searched().key
    assert metadata["kernel"]["chain"]["name"] == searched().chain.name
    assert metadata["hardware"]["hardware_description"][0]["name"] == "cpu"
    assert any(words.startswith("llvm==") for words in metadata["environment"]["requirements"])


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("2 elements too far off, 1 where 2 is expected", "correctness"),
        ("its error is 1.0e-01, more than 1e-03", "correctness"),
        ("it does not compile: LLVM ERROR", "compile"),
        ("Triton does not compile it: out of resource", "compile"),
        ("it fails: Check failed", "runtime"),
        ("its process died of signal 11", "runtime"),
        ("it took longer than 20 s", "timeout"),
        ("it took the compiler too long", "timeout"),
        ("the compiler crashed", "compile"),
        ("nearly all its registers spill", "constraints"),
        ("the loop over 'h' must be written out", "constraints"),
        ("", "constraints"),
    ],
)
def test_a_reason_has_one_of_six_words(reason: str, word: str) -> None:
    assert invalidity(reason) == word
