"""The same through a real server and the command."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from tests.support.archives import tarred, zipped

from .kinds import KINDS, declared, doubling, hidden
from .live import command, complaints, serving
from .mutate import mutant
from .seeds import seeds

PLACES = ("graph/sparse_initializer/values", "functions/node/attribute/g/initializer")
KINDS_POSTED = (
    "functions that double", "a function that calls itself", "branches nested deep",
    "10^7 empty nodes", "10^7 empty names", "2^31 elements", "ConstantOfShape of some GB",
    "numbers joined far", "opset 2^62", "no text", "a name of two lines",
)  # fmt: skip


def archives_of(good: bytes) -> dict[str, bytes]:
    """Archives that are refused, around a good model."""
    return {
        "up": zipped({"m.onnx": good, "../../evil": b"x"}),
        "absolute": tarred({"m.onnx": good, "/tmp/evil": b"x"}),
        "two models": zipped({"m.onnx": good, "n.onnx": good}),
        "twice": tarred({"m.onnx": good, "./m.onnx": good}, "w:gz"),
        "many members": zipped({f"{i}": b"" for i in range(20_000)}),
        "a bomb": zipped({"m.onnx": good, "w": bytes(10 << 20)}),
        "cut": zipped({"m.onnx": good})[:-30],
        "a gzip of no tar": gzip.compress(good),
    }


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_the_server_answers_in_sentences_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCFUSER_MAX_UNPACKED_BYTES", str(8 << 20))
    with serving(tmp_path) as server:
        kinds = [(name, KINDS[name][0]()) for name in KINDS_POSTED]
        answers = server.posted(kinds)
        assert complaints(server, answers) == []
        for a in answers:
            assert a.status == 422, a
            assert KINDS[a.name][1] in json.loads(a.body)["detail"], a
        stolen = server.posted([(p, hidden()[p]) for p in PLACES], "x=2x4")
        assert all("external file" in a.body for a in stolen), stolen
        archives = server.posted(list(archives_of(seeds()[0]).items()))
        assert complaints(server, archives) == []
        assert {a.status for a in archives} == {422}, archives
        assert [a for a in archives if "archive" not in json.loads(a.body)["detail"]] == []
        giant = server.posted([("giant", declared("n"))], "x=999999999")
        assert [a.status for a in giant] == [422]
        mutants = server.posted([(str(i), mutant(i)) for i in range(0, 5000, 1000)])
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
