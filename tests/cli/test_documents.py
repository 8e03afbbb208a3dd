"""What is printed with --json."""

from __future__ import annotations

import json
import math

import pytest

from mcfuser.cli.command import app
from mcfuser.cli.documents import asked_for_json, print_document, problem_document
from mcfuser.cli.terminal import ended
from mcfuser.errors import DisagreementError, LimitError
from mcfuser.finite import finite


def test_a_document_is_json_whatever_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"error": math.nan, "times": [math.inf, 1.5], "inner": {"x": (-math.inf, 2)}})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "error": None, "times": [None, 1.5], "inner": {"x": [None, 2]}
    }  # fmt: skip
    assert printed.count("\n") == 1 and finite("nan") == "nan"


def test_problems_have_kinds() -> None:
    known = (
        (LimitError("late"), "limit"),
        (DisagreementError("differs"), "disagreement"),
        (FileNotFoundError(2, "no such file"), "system"),
        (RuntimeError("words"), "usage"),
    )
    for error, kind in known:
        document = problem_document(error, "sentence", 1)
        assert document == {"problem": {"kind": kind, "detail": "sentence", "status": 1}}


def test_json_is_asked_for_by_an_option_and_not_by_an_argument() -> None:
    assert asked_for_json(("space", "x", "--json")) and not asked_for_json(
        ("space", "--", "--json")
    )


CHAIN = "gemm:1,64,64,32,32"
COMMANDS = (
    ("space", CHAIN),
    ("explain", CHAIN),
    ("explain", "attention:2,64,64,32,32"),
    ("devices",),
    ("space", "gemm:1"),
    ("explain", "none.onnx"),
    ("compile", "none.onnx", "-o", "out"),
    ("run", "nowhere"),
    ("batch", "none.toml", "-o", "out"),
    ("bisect", "none.onnx"),
    ("tune", "gemm:1"),
    ("device", "abacus"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_standard_output_is_one_document(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = ended(app, (*words, "--json"))
    told = capsys.readouterr()
    document = json.loads(told.out)
    if status:
        assert document == {
            "problem": {
                "kind": document["problem"]["kind"],
                "detail": told.err.removeprefix("mcfuser: ").rstrip("\n"),
                "status": status,
            }
        }
    else:
        assert told.err == "" and "problem" not in document


def test_a_chains_document_has_its_repairs_and_loop_nests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(app, ("explain", "attention:8,512,512,64,64", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    repairs = [
        way["repair"]
        for d in document["dependences"] for way in d["resolved"] if way["way"] == "roll"
    ]  # fmt: skip
    assert any("exp2(R_old[b, m] - R[b, m])" in repair for repair in repairs)
    assert document["device"] == "nvidia/a100" and "mh(" in "".join(document["loop_nests"])
