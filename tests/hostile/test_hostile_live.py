"""The same through a real server and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .kinds import KINDS, declared, doubling, hidden
from .live import command, complaints, serving
from .mutate import mutant

PLACES = ("graph/sparse_initializer/values", "functions/node/attribute/g/initializer")
KINDS_POSTED = (
    "functions that double", "a function that calls itself", "branches nested deep",
    "10^7 empty nodes", "10^7 empty names", "2^31 elements", "ConstantOfShape of some GB",
    "numbers joined far", "opset 2^62", "no text", "a name of two lines",
)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_the_server_answers_in_sentences_and_stays_small(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        kinds = [(name, KINDS[name][0]()) for name in KINDS_POSTED]
        answers = server.posted(kinds)
        assert complaints(server, answers) == []
        for a in answers:
            assert a.status == 422, a
            assert KINDS[a.name][1] in json.loads(a.body)["detail"], a
        stolen = server.posted([(p, hidden()[p]) for p in PLACES], "x=2x4")
        assert all("external file" in a.body for a in stolen), stolen
        giant = server.posted([("giant", declared("n"))], "x=999999999")
        assert [a.status for a in giant] == [422]
        mutants = server.posted([(str(i), mutant(i)) for i in range(0, 5000, 250)])
        assert complaints(server, mutants) == []
        assert {a.status for a in mutants} == {202, 422}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (lambda: hidden()["graph/sparse_initializer/values"], ["--shape", "x=2x4"], "external"),
        (lambda: doubling(28), [], "268435456 nodes"),
        (lambda: declared("n"), ["--shape", "x=999999999"], "999999999 elements"),
        (lambda: declared("n"), ["--shape", f"x={'9' * 5000}"], "shape"),
        (lambda: hidden()["functions/node/attribute/t"], [], "external"),
    ],
)
def test_the_command_says_one_sentence(
    model: object, options: list[str], words: str, tmp_path: Path
) -> None:
    assert callable(model)
    ended = command(tmp_path, model(), *options)
    assert ended.status == 2, ended
    assert words in ended.errors and "Traceback" not in ended.errors
    assert len(ended.errors.strip().splitlines()) == 1, ended.errors
