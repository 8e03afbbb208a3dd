"""Folders for temporary files, and those that were left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mcfuser.process.scratch import Scratch, remove_abandoned
from tests.support.paths import PYTHONPATH

KILLED = """
import os, signal
from mcfuser.process.scratch import Scratch
made = Scratch("a")
(made.path / "a" / "large").write_bytes(b"x")
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_owner(place: Path) -> None:
    made = Scratch("a", "b")
    assert made.path.parent == place and {"a", "b"} <= {p.name for p in made.path.iterdir()}
    assert made.path.stat().st_mode & 0o77 == 0
    made.remove()
    made.remove()
    assert list(place.iterdir()) == []


def test_a_folder_that_was_forgotten_goes_as_its_process_ends(place: Path) -> None:
    code = "from mcfuser.process.scratch import Scratch; made = Scratch('a'); print(made.path)"
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(place)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert told.stdout.decode().startswith(str(place)) and list(place.iterdir()) == []


def test_only_what_a_killed_owner_has_left_is_removed(place: Path) -> None:
    mine, other = Scratch(), place / "mcfuser-other"
    other.mkdir()  # nobody's lock: it is somebody else's business
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(place)}
    told = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True)
    left = Path(told.stdout.decode().strip())
    assert (left / "a" / "large").exists()
    assert remove_abandoned() == 1
    assert sorted(place.iterdir()) == sorted([mine.path, other])
    mine.remove()


def test_a_link_is_not_followed(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    valuable = tmp_path_factory.mktemp("valuable")
    (valuable / "owner").touch()
    (place / "mcfuser-link").symlink_to(valuable)
    assert remove_abandoned() == 0
    assert (valuable / "owner").exists()
