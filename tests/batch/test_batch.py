"""Batches with a pretended compiler: what is done, skipped, kept, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mcfuser.batch import entry, state
from mcfuser.batch.outcome import Outcome
from mcfuser.batch.zoo import read_zoo
from tests.support.zoo import Zoo


class Seen(Exception):
    """The words of a command that was not run."""


def test_an_entry_s_options_reach_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(module: str, words: Sequence[str], *more: object) -> None:
        raise Seen(*words)

    monkeypatch.setattr(entry, "run_command", seen)
    zoo = Zoo(tmp_path)
    pair = 'in_place = { past = "present" }'
    for more, expected in (
        ("", ()),
        ('precision = "fp16"', ("--precision", "fp16")),
        (pair, ("--in-place=past=present",)),
    ):
        zoo.holds(more, model="fine")
        (one,) = read_zoo(tmp_path / "zoo.toml")
        with pytest.raises(Seen) as words:
            entry.do(one, tmp_path, None, lambda: True)
        told = words.value.args
        at = told.index(expected[0]) if expected else len(told)
        assert told[at : at + len(expected)] == expected
        assert expected or not {"--precision", "--in-place=past=present"} & {*told}


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return Zoo(tmp_path)


def test_a_good_zoo_is_done_once(zoo: Zoo) -> None:
    zoo.holds('devices = ["cpu", "l4"]', a="good", b="fine")
    status, told, wrong = zoo.batch("--jobs", "2")
    assert (status, wrong) == (0, "")
    assert "4 of" not in told and "2 unchecked, 2 passed; 0 of 4 unchanged" in told
    assert sorted(zoo.begun()) == ["a", "a", "b", "b"]
    (entry, other, *_) = zoo.report["entries"]
    assert (entry["device"], entry["error"], entry["fused"], entry["chains"]) == ("cpu", 1e-7, 1, 2)
    assert (zoo.output / entry["folder"] / "module.so").read_bytes() == b"module of good"
    assert other["device"] == "nvidia/l4" and "no GPU is at hand" in other["reason"]
    status, told, said = zoo.batch("--json")
    assert status == 0 and "4 of 4 unchanged" in said
    assert json.loads(told) == zoo.report and zoo.report["unchanged"] == 4
    assert len(zoo.begun()) == 4
    suites = ElementTree.parse(zoo.output / "junit.xml").getroot()
    assert [s.get("name") for s in suites] == ["cpu", "nvidia/l4"]
    assert suites.attrib | {"time": ""} == {
        "name": "mcfuser batch", "tests": "4", "failures": "0", "errors": "0", "skipped": "4",
        "time": "",
    }  # fmt: skip


def test_the_time_that_is_left_is_told_where_an_entry_has_an_earlier_one(zoo: Zoo) -> None:
    zoo.holds(a="good", b="fine", c="fair")
    status, told, _ = zoo.batch()
    assert status == 0 and " left" not in told.split("[3/3]")[1]
    one, two, three = read_zoo(zoo.folder / "zoo.toml")
    two.model.write_text("better")
    three.model.write_text("fairer")
    state.forget(zoo.output / "entries" / two.folder)
    kept = zoo.output / "entries" / three.folder
    known = state.last(kept)
    assert known is not None
    state.keep(kept, "another", replace(known, seconds=72_000.0))
    status, told, said = zoo.batch("--json")
    first, second, third, *_ = said.splitlines()
    assert first.startswith(f"[1/3] {one.name} cpu: passed (unchanged)") and " left" not in first
    assert second.endswith("; about 20.0 h left") and third.startswith("[3/3] c.onnx")
    assert " left" not in third and json.loads(told)["status"] == 0


def test_what_changed_is_done_again_and_nothing_else(zoo: Zoo) -> None:
    zoo.holds(a="good", b="fine", c="fair")
    assert zoo.batch()[0] == 0
    (zoo.folder / "b.onnx").write_text("better")
    folder = next(e["folder"] for e in zoo.report["entries"] if e["name"] == "c.onnx")
    (zoo.output / folder / "module.so").write_bytes(b"something else")
    assert zoo.batch()[0] == 0
    assert zoo.begun() == ["a", "b", "c", "b", "c"]
    zoo.holds("seed = 1", a="good", b="better", c="fair")
    assert zoo.batch()[0] == 0
    assert len(zoo.begun()) == 8


def test_a_model_whose_weights_changed_is_done_again(zoo: Zoo) -> None:
    weights = zoo.folder / "a.onnx.data"
    weights.write_bytes(b"weights")
    zoo.holds(a="good", b="fine")
    assert zoo.batch()[0] == 0
    assert zoo.batch()[0] == 0 and zoo.begun() == ["a", "b"]
    weights.write_bytes(b"others")
    assert zoo.batch()[0] == 0 and zoo.begun() == ["a", "b", "a"]
    weights.unlink()
    assert zoo.batch()[0] == 0 and zoo.begun() == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    "words",
    [
        "", "{", "[]", "[" * 100_000, '{"key": "k"}', '{"key": "k", "outcome": {}}',
        '{"key": "k", "outcome": {"state": "odd"}}', '{"key": "k", "outcome": {"state": []}}',
        '{"key": "k", "outcome": {"state": "passed", "error": "none"}}',
        '{"key": "k", "outcome": {"state": "passed", "seconds": null}}',
        '{"key": "k", "outcome": {"state": "passed", "external": ["w"]}}',
        '{"key": "k", "outcome": {"state": "passed", "external": {"w": 1}}}',
    ],
)  # fmt: skip
def test_a_spoilt_outcome_is_no_outcome(words: str, tmp_path: Path) -> None:
    (tmp_path / "module.so").write_bytes(b"module")
    kept = Outcome("passed", error=0.0, module=state.file_hash(tmp_path / "module.so"))
    state.keep(tmp_path, "k", kept)
    assert state.known(tmp_path, "k", tmp_path) == kept
    assert state.known(tmp_path, "another", tmp_path) is None
    (tmp_path / "outcome.json").write_text(words)
    assert state.known(tmp_path, "k", tmp_path) is None


def test_one_entrys_death_is_its_own_failure(zoo: Zoo) -> None:
    zoo.holds(
        dies="crash", bug="bug", refused="refused", wrong="wrong", infinite="infinite", nan="nan",
        later="dies later", good="good",
    )  # fmt: skip
    status, _, wrong = zoo.batch("--jobs", "3")
    assert (status, wrong) == (1, "")
    disagreed = {"wrong", "infinite", "nan"}
    assert zoo.states() == {
        **dict.fromkeys(("dies", "bug", "refused", "later"), "failed"),
        **dict.fromkeys(disagreed, "disagreed"),
        "good": "passed",
    }
    reasons = {e["name"].removesuffix(".onnx"): e["reason"] for e in zoo.report["entries"]}
    assert reasons["dies"] == "compile died of signal SIGSEGV"
    assert reasons["bug"] == "compile ended with status 1: RuntimeError: a bug"
    assert reasons["refused"] == "the model has no operators"
    assert "differ from onnxruntime's by 5.0e-01, more than 1.0e-04" in reasons["wrong"]
    cases = ElementTree.parse(zoo.output / "junit.xml").getroot().findall("testsuite/testcase")
    assert sum(c.find("failure") is not None for c in cases) == 7
    page = (zoo.output / "summary.md").read_text()
    assert page.index("**disagreed**") < page.index("**failed**") < page.index("| passed |")
    again, _, _ = zoo.batch()
    assert again == 1
    assert zoo.begun().count("good") == 1 and zoo.begun().count("dies") == 2


def test_a_time_is_beside_onnxruntimes_on_the_same_device_alone(zoo: Zoo) -> None:
    zoo.holds(here="good", there="elsewhere")
    status, told, _ = zoo.batch()
    assert status == 0
    assert "here.onnx cpu: passed, error 1.0e-07, 0.50 of onnxruntime's time" in told
    assert "there.onnx cpu: passed, error 1.0e-07, 1.000 ms\n" in told
    assert zoo.report["entries"][1]["onnxruntime_seconds"] is None
    assert "| passed | 1.0e-07 | - |" in (zoo.output / "summary.md").read_text()


def test_what_takes_too_long_has_failed(zoo: Zoo) -> None:
    zoo.holds('limit = "2s"', a="wait")
    assert zoo.batch()[0] == 1
    assert zoo.report["entries"][0]["reason"] == "compile took longer than 2 s and was ended"
    assert gone(*zoo.processes())


@pytest.mark.thorough
def test_a_spent_budget_keeps_what_is_done(zoo: Zoo) -> None:
    zoo.holds(a="wait", b="good")
    status, told, _ = zoo.batch("--timeout", "3s")
    assert status == 3 and "2 not run" in told
    assert zoo.states() == {"a": "not run", "b": "not run"}
    assert "b" not in zoo.begun() and gone(*zoo.processes())
    (zoo.folder / "gate").touch()
    assert zoo.batch()[0] == 0
    status, _, _ = zoo.batch("--timeout", "1ms")
    assert status == 0, "what is known needs no time"


def test_a_failure_outweighs_a_spent_budget(zoo: Zoo) -> None:
    zoo.holds(a="refused", b="wait")
    process = zoo.start("--timeout", "600s")
    zoo.wait_until_begun("b")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert zoo.states() == {"a": "failed", "b": "not run"}
    assert zoo.report["status"] == 1 and zoo.report["interrupted"] is True
    assert gone(*zoo.processes())


def test_after_kill_9_it_goes_on_where_it_was(zoo: Zoo) -> None:
    zoo.holds(a="good", b="wait", c="fine")
    process = zoo.start()
    zoo.wait_until_begun("b")
    process.kill()
    process.communicate()
    assert not (zoo.output / "report.json").exists()
    (zoo.folder / "gate").touch()
    status, told, _ = zoo.batch()
    assert status == 0 and "1 of 3 unchanged" in told
    assert zoo.begun() == ["a", "b", "b", "c"]


def test_an_answer_that_a_killed_batch_has_left_is_not_read(zoo: Zoo) -> None:
    zoo.holds(a="good")
    (one,) = read_zoo(zoo.folder / "zoo.toml")
    left = zoo.output / "entries" / one.folder / "check.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"error": 0.5}\n')
    assert zoo.batch()[0] == 0
    assert zoo.states() == {"a": "passed"} and not left.exists()


@pytest.mark.thorough
def test_deaths_at_any_time_lose_nothing_that_was_done(zoo: Zoo) -> None:
    """A batch is killed again and again, a little later each time, until one is not."""
    zoo.holds(a="good", b="fine", c="fair", d="kind")
    lock = zoo.folder / "mcfuser.lock"
    done: set[str] = set()
    for number in range(5):
        process = zoo.start("--lock", str(lock), "--update-lock")
        for _ in range(6 + 6 * number):
            if process.poll() is None:
                time.sleep(0.05)
        process.kill()
        process.communicate()
        kept = {p.parent.name[0] for p in zoo.output.glob("entries/*/outcome.json")}
        assert done <= kept, "an outcome that was kept stays"
        done = kept
        assert all(Outcome.from_json(o["outcome"]).good for o in outcomes(zoo))
        if lock.exists():
            json.loads(lock.read_text())
    before = len(zoo.begun())
    assert zoo.batch("--lock", str(lock), "--update-lock")[0] == 0
    assert len(zoo.begun()) - before == 4 - len(done)
    assert set(zoo.states().values()) == {"passed"}
    assert len(json.loads(lock.read_text())["devices"]["cpu"]["entries"]) == 4


def outcomes(zoo: Zoo) -> list[dict[str, dict[str, object]]]:
    return [json.loads(p.read_text()) for p in zoo.output.glob("entries/*/outcome.json")]


def test_one_batch_at_a_time_writes_to_a_folder(zoo: Zoo) -> None:
    zoo.holds(a="wait")
    process = zoo.start()
    zoo.wait_until_begun("a")
    status, _, wrong = zoo.batch()
    assert status == 2 and "another batch writes to" in wrong
    (zoo.folder / "gate").touch()
    process.communicate()
    assert process.returncode == 0


def test_an_entry_that_cannot_be_kept_has_failed(zoo: Zoo) -> None:
    zoo.holds(a="good", b="fine")
    assert zoo.batch()[0] == 0
    a, _ = (zoo.output / e["folder"] for e in zoo.report["entries"])
    for file in a.iterdir():
        file.unlink()
    a.rmdir()
    a.write_text("in the way")
    assert zoo.batch()[0] == 1
    assert zoo.states() == {"a": "failed", "b": "passed"}


def test_the_command_ends_with_who_started_it(tmp_path: Path) -> None:
    fifo = tmp_path / "model.onnx"
    os.mkfifo(fifo)
    script = (
        "import sys; from mcfuser.batch.entry import MODULE; "
        "from mcfuser.process.supervised import Supervised; "
        "print(Supervised(MODULE, sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    )
    words = ["compile", str(fifo), "-o", str(tmp_path / "out"), "--device", "l4"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        with fifo.open("wb"):  # the command has opened its model
            parent.kill()
            assert gone(child)


def gone(*processes: int) -> bool:
    """None of them runs; waits until that is so, and fails with the test's own limit if never."""
    while any(Path(f"/proc/{p}").exists() and not zombie(p) for p in processes):
        time.sleep(0.05)
    return True


def zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return os.path.exists(f"/proc/{process}")
