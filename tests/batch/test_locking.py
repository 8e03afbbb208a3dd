"""Batches with mcfuser.lock and a pretended compiler: what is written there, what it decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.zoo import Zoo

ENTRY = "a.onnx"


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return Zoo(tmp_path)


def lock(zoo: Zoo) -> dict[str, dict]:
    """What is locked for the CPU."""
    return json.loads((zoo.folder / "mcfuser.lock").read_text())["devices"]["cpu"]


def edit(zoo: Zoo, old: str, new: str) -> None:
    path = zoo.folder / "mcfuser.lock"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def batch(zoo: Zoo, *words: str) -> tuple[int, str, str]:
    return zoo.batch("--lock", str(zoo.folder / "mcfuser.lock"), *words)


def test_a_lock_is_written_and_builds_the_same(zoo: Zoo) -> None:
    zoo.holds('devices = ["cpu", "l4"]', a="good", b="fine")
    status, told, wrong = batch(zoo, "--update-lock")
    assert (status, wrong) == (0, "") and "entries 2 of cpu, 2 of nvidia/l4" in told
    assert set(lock(zoo)["chains"]) == {"key of good", "key of fine"}
    assert lock(zoo)["entries"][ENTRY]["seconds"] == 1e-3
    there = (zoo.folder / "mcfuser.lock").read_text()
    assert json.loads(there)["devices"]["nvidia/l4"]["entries"][ENTRY]["seconds"] is None
    assert str(zoo.folder) not in there, "no path of this machine"
    assert batch(zoo, "--locked")[0] == 0
    assert len(zoo.begun()) == 8, "what was searched is built anew from the lock"
    status, told, _ = batch(zoo, "--locked")
    assert status == 0 and "4 of 4 unchanged" in told and len(zoo.begun()) == 8
    assert batch(zoo, "--update-lock")[0] == 0
    assert (zoo.folder / "mcfuser.lock").read_text() == there


def test_an_entry_that_is_not_locked_fails_alone(zoo: Zoo) -> None:
    zoo.holds(a="good")
    assert batch(zoo, "--update-lock")[0] == 0
    zoo.holds(a="good", b="fine")
    assert batch(zoo, "--locked")[0] == 1
    assert zoo.states() == {"a": "passed", "b": "failed"}
    assert zoo.report["entries"][1]["reason"] == "chain 'fine' cannot be built as it is"


def test_another_lock_is_another_build(zoo: Zoo) -> None:
    zoo.holds(a="good", b="fine")
    assert batch(zoo, "--update-lock")[0] == 0
    assert batch(zoo, "--locked")[0] == 0
    document = json.loads((zoo.folder / "mcfuser.lock").read_text())
    document["devices"]["cpu"]["chains"]["key of fine"]["axes"] = "m=5"
    (zoo.folder / "mcfuser.lock").write_text(json.dumps(document))
    assert batch(zoo, "--locked")[0] == 0
    assert zoo.begun() == ["a", "b", "a", "b", "b"]


def test_what_failed_stays_as_it_was_locked(zoo: Zoo) -> None:
    zoo.holds(a="good", b="fine")
    assert batch(zoo, "--update-lock")[0] == 0
    before = lock(zoo)
    zoo.holds(a="better", b="crash")
    assert batch(zoo, "--update-lock")[0] == 1
    after = lock(zoo)
    assert after["entries"]["b.onnx"] == before["entries"]["b.onnx"]
    assert set(after["chains"]) == {"key of better", "key of fine"}


def test_what_is_slower_than_its_baseline_fails(zoo: Zoo) -> None:
    zoo.holds(a="good", b="elsewhere")
    assert batch(zoo, "--update-lock")[0] == 0
    times = zoo.folder / "milliseconds"
    times.write_text("1.09")
    zoo.holds(a="newer", b="elsewhere")
    assert batch(zoo)[0] == 0, "within ten per cent"
    times.unlink()
    zoo.holds(a="slow", b="elsewhere")
    status, told, _ = batch(zoo)
    assert status == 1 and zoo.states() == {"a": "slower", "b": "passed"}
    assert "3.00 times its baseline of 1 ms, and 1.1 times passes" in told
    page = (zoo.output / "summary.md").read_text()
    assert "**slower**" in page and "| 3.00 |" in page
    assert 'failure type="slower"' in (zoo.output / "junit.xml").read_text()
    assert batch(zoo, "--margin", "250")[0] == 0
    assert zoo.begun() == ["a", "b", "a", "a"], "what was compiled is only measured again"
    status, _, _ = batch(zoo, "--update-lock")
    assert status == 0 and lock(zoo)["entries"][ENTRY]["seconds"] == 3e-3
    assert batch(zoo)[0] == 0


def test_a_slow_machine_is_no_slower_module(zoo: Zoo) -> None:
    """The baseline's own module, which is still at hand, takes as long now."""
    zoo.holds(a="good")
    assert batch(zoo, "--update-lock")[0] == 0
    (zoo.folder / "milliseconds").write_text("3")
    zoo.holds(a="newer")
    assert batch(zoo)[0] == 0
    (folder,) = (e["folder"] for e in zoo.report["entries"])
    assert (zoo.output / folder / "baseline" / "module.so").read_bytes() == b"module of good"
    names = [Path(folder).name]
    assert (zoo.folder / "ran").read_text().split()[1:] == names + ["baseline", *names] * 3


def test_a_kept_time_is_measured_again_where_the_lock_is_stricter(zoo: Zoo) -> None:
    zoo.holds(a="good")
    assert batch(zoo, "--update-lock")[0] == 0
    edit(zoo, '"seconds": 0.001', '"seconds": 0.0005')
    assert batch(zoo)[0] == 1 and zoo.states() == {"a": "slower"}
    (zoo.folder / "milliseconds").write_text("0.5")
    status, told, _ = batch(zoo)
    assert status == 0 and "1 of 1 unchanged" in told
    assert zoo.begun() == ["a"]
    ran = len((zoo.folder / "ran").read_text().split())
    assert batch(zoo)[0] == 0 and len((zoo.folder / "ran").read_text().split()) == ran


def test_a_report_without_kernels_cannot_be_locked(zoo: Zoo) -> None:
    zoo.holds(a="good", b="unpinned")
    status, told, _ = batch(zoo, "--update-lock")
    assert status == 0 and "not locked" in told and "b.onnx cpu" in told
    assert set(lock(zoo)["entries"]) == {ENTRY}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--locked",), "need the lock's file: --lock mcfuser.lock"),
        (("--update-lock",), "need the lock's file"),
        (("--lock", "no.lock"), "lock 'no.lock' cannot be read"),
        (("--lock", "x", "--locked", "--update-lock"), "say one"),
        (("--margin", "-1"), "--margin is -1"),
        (("--margin", "nan"), "--margin is nan"),
    ],
)
def test_options_that_do_not_fit_are_a_mistake(zoo: Zoo, words: tuple[str, ...], said: str) -> None:
    zoo.holds(a="good")
    status, _, wrong = zoo.batch(*words)
    assert status == 2 and said in wrong and not zoo.begun()


def test_a_device_may_be_required(zoo: Zoo) -> None:
    zoo.holds('devices = ["cpu", "l4"]', a="good")
    assert zoo.batch()[0] == 0
    assert zoo.batch("--require-devices")[0] == 4
    assert zoo.report["status"] == 4
    zoo.holds('devices = ["cpu", "l4"]', a="good", b="refused")
    assert zoo.batch("--require-devices")[0] == 1, "a failure outweighs it"
