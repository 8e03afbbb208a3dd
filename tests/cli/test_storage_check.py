"""What is found of settings, data folder and database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcfuser.cli.storage_check import data_folder, database, settings
from mcfuser_db import Storage


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("MCFUSER_DATA", str(folder))
    return folder


def test_what_is_not_there_yet_is_no_problem(data: Path) -> None:
    folder, room = data_folder()
    (kept,) = database()
    assert [f.level for f in (folder, kept)] == ["ok", "ok"] and room.facts["free"] > 0
    assert "not there yet" in folder.sentence and "not there yet" in kept.sentence
    assert not data.exists(), "an examination makes nothing"


def test_a_folder_that_is_open_to_others_is_a_warning(data: Path) -> None:
    data.mkdir(mode=0o700)
    assert next(iter(data_folder())).level == "ok"
    data.chmod(0o755)
    found = next(iter(data_folder()))
    assert (found.level, found.remedy) == ("warning", f"run chmod 700 '{data}'")


def test_a_file_in_the_folders_place_is_a_problem(data: Path) -> None:
    data.touch()
    (found,) = data_folder()
    assert found.level == "problem" and "is no folder" in found.sentence
    assert "MCFUSER_DATA" in found.remedy


def test_a_folder_that_cannot_be_read_is_a_problem(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    (found,) = data_folder()
    assert found.level == "problem" and "cannot be read and written" in found.sentence


def test_a_database_opens_or_says_why_not(data: Path) -> None:
    data.mkdir(mode=0o700)
    Storage(f"sqlite:///{data / 'mcfuser.db'}").close()
    (found,) = database()
    assert found.level == "ok" and found.facts["path"] == str(data / "mcfuser.db")
    (data / "mcfuser.db").write_bytes(b"no database at all" * 1000)
    (found,) = database()
    assert found.level == "problem" and "not a database" in found.sentence
    assert found.remedy.startswith(f"move '{data / 'mcfuser.db'}' away")


def test_a_database_elsewhere_is_shown_without_its_password(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCFUSER_DATABASE", f"sqlite:///{data.parent / 'other.db'}")
    (found,) = database()
    assert (found.level, found.sentence) == ("ok", "the database of MCFUSER_DATABASE opens")
    monkeypatch.setenv("MCFUSER_DATABASE", "postgresql://me:secret@127.0.0.1:1/none")
    (found,) = database()
    assert found.level == "problem" and "secret" not in found.sentence + found.remedy
    monkeypatch.setenv("MCFUSER_DATABASE", "nonsense")
    (found,) = database()
    assert found.level == "problem" and "cannot be read" in found.sentence


def test_settings_name_the_variables_that_are_set_and_the_one_that_is_wrong(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = settings()
    assert found.level == "ok" and "MCFUSER_DATA" in found.facts["set"]
    monkeypatch.setenv("MCFUSER_PORT", "many")
    (found,) = settings()
    assert found.level == "problem" and "MCFUSER_PORT is 'many'" in found.sentence and found.remedy
