"""Entries beside their baselines: what is measured again, and what is slower at last."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcfuser.batch.outcome import Outcome
from mcfuser.batch.pace import Baseline, judged

OLD = hashlib.sha256(b"old").hexdigest()
NEW = hashlib.sha256(b"new").hexdigest()
LIMIT = Baseline(1e-3, OLD, 0.1)


def passed(seconds: float | None, module: str = NEW) -> Outcome:
    return Outcome("passed", mcfuser_seconds=seconds, module=module)


def never(folder: Path) -> float | None:
    raise AssertionError(f"{folder} is measured")


def answers(*times: float | None) -> Callable[[Path], float | None]:
    left: Iterator[float | None] = iter(times)
    return lambda folder: next(left)


@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 1.1e-3])
def test_what_is_within_the_margin_is_not_measured_again(seconds: float, tmp_path: Path) -> None:
    found = judged(passed(seconds), tmp_path, LIMIT, never)
    assert (found.state, found.baseline_seconds) == ("passed", 1e-3)


def test_what_failed_or_has_no_time_is_not_judged(tmp_path: Path) -> None:
    for outcome in (Outcome("failed", "it did"), passed(None), Outcome("unchecked", "no GPU")):
        assert judged(outcome, tmp_path, LIMIT, never) == outcome


def test_one_good_run_of_several_is_enough(tmp_path: Path) -> None:
    found = judged(passed(9e-3), tmp_path, LIMIT, answers(5e-3, 1.05e-3))
    assert (found.state, found.mcfuser_seconds) == ("passed", 1.05e-3)


def test_what_is_slow_each_time_is_slower(tmp_path: Path) -> None:
    found = judged(passed(4e-3), tmp_path, LIMIT, answers(3e-3, 2e-3, 5e-3))
    assert (found.state, found.mcfuser_seconds, found.bad) == ("slower", 2e-3, True)
    assert found.reason is not None
    assert "2 ms, the best of 4 runs, 2.00 times its baseline of 1 ms" in found.reason


def test_a_module_that_cannot_be_run_again_keeps_its_time(tmp_path: Path) -> None:
    assert judged(passed(4e-3), tmp_path, LIMIT, answers(None)).state == "slower"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with the baseline's own module."""
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "module.so").write_bytes(b"old")
    return tmp_path


def test_the_old_module_takes_turns_with_the_new_one(beside: Path) -> None:
    asked: list[str] = []

    def slow_machine(folder: Path) -> float:
        asked.append(folder.name)
        return 4.1e-3 if folder == beside else 4e-3

    found = judged(passed(4e-3), beside, LIMIT, slow_machine)
    assert (found.state, found.mcfuser_seconds) == ("passed", 4.1e-3), "the machine is slow"
    assert asked == ["baseline", beside.name] * 3
    times = {beside: 6e-3, beside / "baseline": 4e-3}
    worse = judged(passed(4e-3), beside, LIMIT, times.__getitem__)
    assert worse.state == "slower" and worse.reason is not None
    assert "6 ms in 3 turns with the module of the baseline, 1.50 times" in worse.reason


def test_a_damaged_old_module_takes_no_turns(beside: Path) -> None:
    (beside / "baseline" / "module.so").write_bytes(b"another")
    assert judged(passed(4e-3), beside, LIMIT, answers(4e-3, 4e-3, 4e-3)).state == "slower"


def test_a_module_takes_no_turns_with_itself(beside: Path) -> None:
    found = judged(passed(4e-3, OLD), beside, LIMIT, answers(4e-3, 4e-3, 1e-3))
    assert found.state == "passed"
