"""Children: how they are asked, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcfuser.process import birth
from mcfuser.process.death import Death
from mcfuser.process.limits import Limits
from mcfuser.process.supervised import Supervised
from tests.support.paths import ROOT
from tests.support.processes import alive, eventually

WORK = "tests.support.process_work"


@contextmanager
def child(*words: str, module: str = WORK, **more: object) -> Iterator[Supervised]:
    made = Supervised(module, words, **more)
    try:
        yield made
    finally:
        made.end()


def numbers(made: Supervised) -> list[int]:
    line = made.line()
    assert not isinstance(line, Death), line
    return [int(word) for word in line.split()]


def test_lines_are_asked_and_answered() -> None:
    with child("echo") as made:
        for said in (b"one", b"x" * 200_000, b"two"):
            assert made.write(said + b"\n") is None
            assert made.line() == said
        assert made.alive
        made.close_input()
        assert made.wait() == 0


@pytest.mark.parametrize("session", [False, True])
def test_it_leads_a_group_and_a_session_if_that_is_asked_for(session: bool) -> None:
    with child("sleep", session=session) as made:
        assert numbers(made) == [made.pid]
        assert os.getpgid(made.pid) == made.pid
        assert os.getsid(made.pid) == (made.pid if session else os.getsid(0))


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="sessions share the processor as processes do"
)
def test_it_and_its_session_are_nicer_than_its_parent() -> None:
    with child("sleep", session=True, niceness=3) as made, child("sleep", niceness=2) as beside:
        numbers(made), numbers(beside)
        assert os.getpriority(os.PRIO_PROCESS, made.pid) == min(19, os.nice(0) + 3)
        assert os.getpriority(os.PRIO_PROCESS, beside.pid) == min(19, os.nice(0) + 2)
        own = Path(f"/proc/{made.pid}/autogroup").read_text().split()
        assert own[1:] == ["nice", str(min(19, os.nice(0) + 3))]
        assert Path(f"/proc/{beside.pid}/autogroup").read_text() == (
            Path("/proc/self/autogroup").read_text()
        ), "the session of its parent is as nice as it was"


class Refusing:
    """In place of /proc/self/autogroup: refuses the first writes, as Linux does when others have
    just written."""

    def __init__(self, times: int, error: type[OSError]) -> None:
        self.left, self.error, self.written = times, error, ""

    def write_text(self, words: str) -> None:
        self.left -= 1
        if self.left >= 0:
            raise self.error
        self.written = words


@pytest.mark.parametrize(
    ("times", "error", "written"),
    [(3, BlockingIOError, "3"), (99, BlockingIOError, ""), (1, PermissionError, "")],
)
def test_a_session_s_niceness_is_tried_again_and_never_insisted_on(
    times: int, error: type[OSError], written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Refusing(times, error)
    monkeypatch.setattr(birth, "_AUTOGROUP", group)
    monkeypatch.setattr(birth, "_BETWEEN", 0.0)
    monkeypatch.setattr(os, "nice", lambda more: more)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    birth.be_nice(3)
    assert group.written == written
    birth.be_nice(0)
    assert group.written == written


def test_what_it_started_ends_with_it() -> None:
    with child("family") as made:
        mine, other = numbers(made)
        made.end()
        assert not alive(mine)
        assert eventually(lambda: not alive(other))
        made.end()  # once more is no harm


def test_what_outlives_it_is_killed_and_holds_nothing_up() -> None:
    with child("orphan") as made:
        (other,) = numbers(made)
        death = made.line()
        assert isinstance(death, Death) and (death.why, death.status) == ("death", 0)
        assert eventually(lambda: not alive(other))


@pytest.mark.parametrize("what", ["sleep", "busy", "family"])
def test_it_ends_with_a_parent_that_is_killed(what: str) -> None:
    """At once, whatever it is doing: within two seconds on a machine that is not busy."""
    script = (
        "import sys; from mcfuser.process.supervised import Supervised; "
        f"made = Supervised({WORK!r}, [{what!r}]); "
        "print(made.line().decode(), flush=True); made.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert all(map(alive, pids))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not any(map(alive, pids)))


def test_it_does_not_end_with_the_thread_that_started_it() -> None:
    from threading import Thread

    made = list[Supervised]()
    thread = Thread(target=lambda: made.append(Supervised(WORK, ["echo"])))
    thread.start()
    thread.join()
    assert made[0].write(b"still here\n") is None and made[0].line() == b"still here"
    made[0].end()


@pytest.mark.parametrize("status", [0, 3])
def test_a_death_has_a_status_and_last_words(status: int) -> None:
    with child("status", str(status)) as made:
        death = made.line()
    assert death == Death("death", status, "the last words\n")
    assert (death.manner, death.last) == (f"status {status}", "the last words")
    assert not death.signalled and not death.fault


def test_a_death_by_a_signal_has_its_name() -> None:
    with child("sleep") as made:
        numbers(made)
        os.kill(made.pid, signal.SIGSEGV)
        death = made.line()
    assert isinstance(death, Death) and death.manner == "signal SIGSEGV" and death.fault


def test_one_that_is_done_with_its_output_is_ended() -> None:
    with child("silent") as made:
        death = made.line()
        assert isinstance(death, Death) and death.manner == "signal SIGKILL"


def test_one_that_is_killed_from_outside_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    with child("sleep") as made:
        numbers(made)
        os.kill(made.pid, signal.SIGKILL)
        death = made.line()
        assert isinstance(death, Death) and death.outside and made.killed_from_outside
        # one that Linux has killed since for want of memory may be this one
        monkeypatch.setattr("mcfuser.process.supervised.oom_kills", lambda: 10**9)
        assert not made.killed_from_outside and not made.death().outside
        monkeypatch.setattr("mcfuser.process.supervised.oom_kills", lambda: None)
        assert not made.killed_from_outside


@pytest.mark.parametrize("what", ["silent", "ended", "faulty"])
def test_one_that_is_ended_from_here_was_not_killed_from_outside(what: str) -> None:
    with child("silent" if what == "silent" else "sleep") as made:
        if what == "silent":
            assert isinstance(death := made.line(), Death) and not death.outside
        elif what == "faulty":
            os.kill(made.pid, signal.SIGABRT)
            made.wait()
        else:
            made.end()
        assert not made.alive and not made.killed_from_outside


def test_a_wait_ends_at_its_instant() -> None:
    with child("sleep") as made:
        numbers(made)
        begun = time.monotonic()
        assert made.line(begun + 0.2) == Death("time")
        assert made.wait(time.monotonic() + 0.2) is None
        assert made.write(b"x" * (1 << 20), time.monotonic() + 0.2) == Death("time")
        assert time.monotonic() - begun >= 0.6 and made.alive


def test_whoever_waits_is_asked_whether_it_still_does() -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        if time.monotonic() > begun + 0.3:
            raise Enough

    with child("sleep") as made:
        numbers(made)
        for wait in (made.line, made.wait):
            begun = time.monotonic()
            with pytest.raises(Enough):
                wait(check=check)


def test_a_child_that_talks_without_end_is_not_kept_waiting_nor_all_of_it_kept() -> None:
    with child("chatter") as made:
        assert made.line(time.monotonic() + 1.0) == Death("time")
        os.kill(made.pid, signal.SIGKILL)
        assert len(made.death().words) == 8192


def test_it_may_end_politely(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with child("polite", str(note)) as made:
        numbers(made)
        made.end(polite=300.0)
        assert note.read_text() == "tidy" and made.status == 0


def test_its_folders_go_with_it() -> None:
    with child("-c", "x", module="timeit", scratch=True) as made:
        assert made.scratch is not None and made.scratch.is_dir()
    assert not made.scratch.exists() and not made.scratch.parent.exists()


def test_a_module_that_is_not_there_is_told() -> None:
    with child(module="no_such_module") as made:
        death = made.line()
    assert isinstance(death, Death) and death.last.startswith("ModuleNotFoundError")


def test_too_little_memory_is_told_only_where_it_was_limited() -> None:
    words = ["-n", "1", "-r", "1", "bytearray(1 << 36)"]
    with child(*words, module="timeit", limits=Limits(memory=1 << 30)) as made:
        death = made.line()
        assert isinstance(death, Death) and death.why == "memory"
