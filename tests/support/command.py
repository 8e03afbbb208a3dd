"""The command in a process of its own, with few rounds of timing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from mcfuser.process.forkserver import ForkServer, Post
from tests.support.paths import ROOT

_LONGEST = 3600.0  # seconds that a command may take, however busy the machine is

Ended = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """The command's words, the folder and the environment in which it runs, and the paths of the
    files that its standard output and standard error are written to."""

    words: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    output: Path
    errors: Path


def mcfuser(*words: str, data: Path, folder: Path = ROOT) -> Ended:
    """Runs the command in a fork of a process that has loaded TVM: its import takes longer than
    most of what tests ask the command."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        output, errors = scratch / "output", scratch / "errors"
        request = CommandRequest(words, folder, _environment(data), output, errors)
        fork = _server().fork(Post(scratch, 0))
        try:
            status = fork.ask(request, _LONGEST)
        finally:
            fork.end()
        return subprocess.CompletedProcess(words, status, output.read_text(), errors.read_text())


def mcfuser_anew(*words: str, data: Path) -> Ended:
    """Runs the command in a new process, as a user's shell does."""
    return subprocess.run(
        [sys.executable, "-m", "tests.support.hasty_command", *words],
        capture_output=True, text=True, env=_environment(data), check=False, cwd=ROOT,
    )  # fmt: skip


def _environment(data: Path) -> dict[str, str]:
    return {**os.environ, "MCFUSER_DATA": str(data)}


@cache
def _server() -> ForkServer:
    """The one that all commands of this test process are forked from."""
    return ForkServer("tests.support.command_work")
