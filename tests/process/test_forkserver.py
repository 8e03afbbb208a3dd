"""Forks that answer, and how they and the process that forks them end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcfuser.process.forkserver import Fork, ForkFailed, ForkServer, Post
from tests.support.processes import alive, eventually

SECONDS = 600.0


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer("tests.support.forked_work")
    yield made
    assert made._process is not None
    made._process.end()


@pytest.fixture
def fork(server: ForkServer, tmp_path: Path) -> Iterator[Fork]:
    made = server.fork(Post(tmp_path, 3))
    yield made
    made.end()


def test_a_fork_answers_again_and_again(fork: Fork) -> None:
    assert [fork.ask(x, SECONDS) for x in (1, "two" * 200_000, None)] == [1, "two" * 200_000, None]
    assert fork.pid is not None and os.getpgid(fork.pid) == fork.pid


def test_a_fork_has_a_folder_of_its_own_and_yields_to_others(fork: Fork, tmp_path: Path) -> None:
    places = fork.ask("places", SECONDS)
    assert places["scratch"] == str(tmp_path)
    assert places["nice"] == min(19, os.nice(0) + 3)


@pytest.mark.parametrize("how", ["crash", "bug"])
def test_a_fork_that_dies_says_so_and_others_live(server: ForkServer, fork: Fork, how: str) -> None:
    other = server.fork(Post(Path("/tmp"), 0))
    with pytest.raises(EOFError):
        fork.ask(how, SECONDS)
    assert other.ask("here", SECONDS) == "here"
    server.check()  # it lives: nothing is raised
    other.end()
    assert other.pid is not None
    assert eventually(lambda: not alive(other.pid))


def test_an_answer_has_its_time(fork: Fork) -> None:
    assert fork.ask("first", SECONDS) == "first"
    with pytest.raises(TimeoutError):
        fork.ask("sleep", 0.2)
    fork.end()
    assert eventually(lambda: not alive(fork.pid or 0))
    fork.end()  # once more is no harm


def test_a_server_that_dies_is_started_anew_and_its_forks_live(server: ForkServer) -> None:
    first = server.fork(Post(Path("/tmp"), 0))
    parent = first.ask("places", SECONDS)["parent"]
    os.kill(parent, signal.SIGKILL)
    assert eventually(lambda: not alive(parent))
    second = server.fork(Post(Path("/tmp"), 0))
    assert second.ask(2, SECONDS) == 2 and first.ask(1, SECONDS) == 1
    for fork in (first, second):
        fork.end()


def test_a_module_that_does_not_load_is_told() -> None:
    server = ForkServer("no_such_module")
    fork = server.fork(Post(Path("/tmp"), 0))
    with pytest.raises(EOFError):
        fork.ask(1, SECONDS)
    fork.end()
    with pytest.raises(ForkFailed, match=r"no_such_module.*status 1: ModuleNotFoundError"):
        server.check()
    assert server._process is not None
    server._process.end()
