"""Processes that answer line by line, and how each of them may end."""

from __future__ import annotations

import time

import pytest

from mcfuser.process.child import NO_TIME, Child


def test_answers_of_a_child_that_ends_say_so() -> None:
    child = Child("json.tool", ["--no-such-option"])
    child.start()
    (answer,) = child.ask({"a": 1}, 3, 600.0)
    assert "died" in str(answer)
    assert not child.alive


def test_a_child_that_an_error_ends_is_quoted() -> None:
    child = Child("timeit", ["raise ImportError('libcuda is too old')"])
    child.start()
    assert str(child.line(600.0)).endswith("died with status 1: ImportError: libcuda is too old")


def test_a_child_that_is_late_is_stopped() -> None:
    child = Child("timeit", ["-n", "1", "-r", "1", "import time; time.sleep(60)"])
    child.start()
    assert child.line(0.5) == "it ran longer than 0.5 s"
    assert not child.alive


def test_a_deadline_that_comes_first_is_the_reason() -> None:
    child = Child("timeit", ["-n", "1", "-r", "1", "import time; time.sleep(60)"])
    child.start()
    assert child.line(60.0, time.monotonic() + 0.2) == NO_TIME
    assert not child.alive


def test_a_child_that_has_not_greeted_by_a_deadline_goes_on() -> None:
    """A device takes its time to open: if the next chain began anew, none would ever have it."""
    child = Child("timeit", ["-n", "1", "-r", "1", "import time; time.sleep(1); print(7)"])
    child.start()
    assert child.greeting(60.0, time.monotonic() + 0.1) == NO_TIME
    assert child.alive
    assert child.greeting(600.0) == 7
    child.stop()


def test_a_child_that_never_greets_is_stopped() -> None:
    child = Child("timeit", ["-n", "1", "-r", "1", "import time; time.sleep(60)"])
    child.start()
    assert child.greeting(0.3, time.monotonic() + 60) == "it ran longer than 0.3 s"
    assert not child.alive
    child = Child("timeit", ["raise ImportError('libcuda is too old')"])
    child.start()
    assert str(child.greeting(600.0)).endswith("libcuda is too old")


def test_a_child_that_reads_nothing_keeps_nobody_waiting() -> None:
    """A request that is larger than a pipe is written only while it is read."""
    child = Child("timeit", ["-n", "1", "-r", "1", "import time; time.sleep(60)"])
    child.start()
    request = {"programs": "x" * (1 << 20)}
    assert list(child.ask(request, 1, 60.0, time.monotonic() + 0.2)) == [NO_TIME]
    child.start()
    assert list(child.ask(request, 1, 0.2)) == ["it ran longer than 0.2 s"]


def test_products_of_a_child_have_one_thread() -> None:
    """It has no other: numpy starts those of its products when it is loaded."""
    told = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    child = Child("timeit", ["-n", "1", "-r", "1", told])
    child.start()
    assert child.line(600.0) == 1
    child.stop()


def test_a_child_is_told_more_than_its_parent_knows(monkeypatch) -> None:
    monkeypatch.setenv("MCFUSER_OF_ALL", "1")
    told = "import os; print(os.environ['MCFUSER_OF_ALL'] + os.environ['MCFUSER_OF_ONE'])"
    child = Child("timeit", ["-n", "1", "-r", "1", told], {"MCFUSER_OF_ONE": "2"})
    child.start()
    assert child.line(600.0) == 12
    child.stop()


@pytest.mark.thorough
def test_waiting_for_a_lease_is_not_on_a_child_s_time() -> None:
    told = (
        "import json, time; tell = lambda waits: print(json.dumps({'waits': waits}), flush=True); "
        "tell(True); time.sleep(2.5); tell(False); time.sleep(60)"
    )
    child = Child("timeit", ["-n", "1", "-r", "1", told])
    child.start()
    begun = time.monotonic()
    assert child.line(2.0) == "it ran longer than 2 s"
    assert time.monotonic() - begun > 4.0, "2.5 s of waiting and 2 of its own"
