"""Work in a process of its own: what it may not have, and what is left when it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcfuser.errors import ModelError
from mcfuser.process.confined import Confined, Limits, Stopped, run
from tests.support.paths import PYTHONPATH
from tests.support.processes import alive, eventually

WORK = "tests.support.confined_work"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


def test_work_is_done_in_an_empty_folder_that_goes_with_it() -> None:
    told = []
    found = run(WORK, {"do": "echo", "value": "ä\n"}, Limits(), told.append)
    assert told == [{"first": 1}]
    assert found["asked"] == "ä\n" and found["here"] == []
    assert not Path(found["scratch"]).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_without_network_there_are_no_sockets_but_local_ones_and_no_programs() -> None:
    found = run(WORK, {"do": "reach"}, Limits(network=False))
    assert found == {"internet": True, "local": False, "program": True}
    free = run(WORK, {"do": "reach"}, Limits())
    assert not any(free.values())


def test_memory_is_limited() -> None:
    with pytest.raises(Stopped, match="more memory") as stopped:
        run(WORK, {"do": "memory"}, Limits(memory=1 << 32))
    assert stopped.value.why == "memory"


def test_processor_time_is_limited() -> None:
    with pytest.raises(Stopped, match=r"more than 1 s of processor time") as stopped:
        run(WORK, {"do": "spin"}, Limits(processor=1.0))
    assert stopped.value.why == "processor"


def test_time_is_limited() -> None:
    with pytest.raises(Stopped, match=r"longer than 0\.5 s") as stopped:
        run(WORK, {"do": "spin"}, Limits(wall=0.5))
    assert stopped.value.why == "time"


def test_a_death_is_told_with_its_last_words() -> None:
    with pytest.raises(Stopped, match="died of signal SIGABRT") as stopped:
        run(WORK, {"do": "abort"}, Limits())
    assert stopped.value.fault
    with pytest.raises(Stopped, match="status 1: KeyError: 'x'") as stopped:
        run(WORK, {"do": "bug"}, Limits())
    assert stopped.value.why == "death" and "Traceback" in stopped.value.words
    assert not stopped.value.fault
    with pytest.raises(Stopped, match="No module named 'no_such_work'"):
        run("no_such_work", {}, Limits())


def test_a_mistake_of_the_users_comes_back_as_one() -> None:
    with pytest.raises(ModelError, match="13 opsets; give it one"):
        run(WORK, {"do": "mistake"}, Limits())


def test_whoever_waits_may_end_it_with_all_that_it_started() -> None:
    told: list[dict[str, object]] = []

    class Enough(Exception):
        pass

    def check() -> None:
        if told:
            raise Enough

    with pytest.raises(Enough):
        run(WORK, {"do": "start another"}, Limits(), lambda m: told.append(dict(m)), check)
    (names,) = told
    assert eventually(lambda: not alive(int(str(names["mine"]))))
    assert eventually(lambda: not alive(int(str(names["child"]))))
    assert not Path(str(names["scratch"])).exists()


def test_it_ends_with_a_parent_that_is_killed() -> None:
    code = (
        "from mcfuser.process.confined import run, Limits; "
        "tell = lambda m: print(m['mine'], flush=True); "
        f"run({WORK!r}, {{'do': 'start another'}}, Limits(), tell)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    mine = int(parent.stdout.readline())
    assert alive(mine)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not alive(mine))


def test_a_process_may_wait_for_its_work() -> None:
    with Confined(WORK, Limits(wall=30.0)) as ready:
        assert ready.run({"do": "echo", "value": 7})["asked"] == 7
    assert not ready.scratch.exists()
