"""A linker, folders for locks and temporary files, and disks."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from mcfuser.diagnosis import Severity
from mcfuser.doctor import machine


def test_modules_need_a_linker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (missing,) = machine.linker()
    assert missing.level == "problem" and "g++" in missing.remedy
    program = tmp_path / "clang"
    program.touch(0o755)
    (found,) = machine.linker()
    assert (found.level, found.facts) == ("ok", {"path": str(program)})


def test_the_lock_folder_is_the_users_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (found,) = machine.locks()
    assert found.level == "ok" and found.facts["path"].startswith(str(tmp_path / "runtime"))
    for name in ("runtime", "tmp"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        (tmp_path / name).touch()
    (found,) = machine.locks()
    assert found.level == "problem" and found.remedy.startswith("set XDG_RUNTIME_DIR")


def test_temporary_files_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (found,) = machine.temporary()
    assert found.facts["path"] == str(tmp_path) and not [*tmp_path.iterdir()]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    (found,) = machine.temporary()
    assert found.level == "problem" and "TMPDIR" in found.remedy


class Usage(NamedTuple):
    free: int


@pytest.mark.parametrize(
    ("free", "level", "words"),
    [
        (5 << 30, "ok", "5.0 GiB left"),
        (900 << 20, "warning", "900 MiB left"),
        (1 << 20, "problem", "full"),
    ],
)
def test_a_disk_that_is_full_is_a_problem(
    free: int, level: Severity, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free))
    (found,) = machine.room("data folder", tmp_path, "MCFUSER_DATA")
    assert found.level == level and words in found.sentence
    assert ("MCFUSER_DATA" in found.remedy) == (level != "ok")
