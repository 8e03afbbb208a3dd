"""Where locks lie: in a folder that is the user's alone, and never behind a link."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

import platformdirs
import pytest

from mcfuser.errors import InputError
from mcfuser.measure import lease as leasing
from mcfuser.measure.lease import folders, lease


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The two folders, below a runtime folder and a temporary one of the test's own."""
    runtime, temporary = tmp_path / "runtime", tmp_path / "temporary"
    runtime.mkdir(mode=0o700)
    temporary.mkdir(mode=0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    first, second = folders()
    assert (first.parent, second.parent) == (runtime, temporary)
    return first, second


def held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_folder_and_the_file_are_private(places: tuple[Path, Path]) -> None:
    with lease("cpu", exclusive=True):
        assert held(places[0] / "cpu.lock")
        assert stat.S_IMODE(places[0].stat().st_mode) == 0o700
        assert stat.S_IMODE((places[0] / "cpu.lock").stat().st_mode) == 0o600
    assert not held(places[0] / "cpu.lock")
    assert not places[1].exists()


def test_shared_leases_go_together(places: tuple[Path, Path]) -> None:
    with lease("cpu", exclusive=False), lease("cpu", exclusive=False):
        assert held(places[0] / "cpu.lock")


def test_a_link_in_the_place_of_the_lock_is_not_followed(places: tuple[Path, Path]) -> None:
    victim = places[0].parent / "victim"
    places[0].mkdir(mode=0o700)
    (places[0] / "cpu.lock").symlink_to(victim)
    with lease("cpu", exclusive=True):
        assert held(places[1] / "cpu.lock")
    assert not victim.exists()


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_folder_that_others_can_change_is_not_used(kind: str, places: tuple[Path, Path]) -> None:
    for place in places:
        if kind == "link":
            elsewhere = place.parent / "elsewhere"
            elsewhere.mkdir(mode=0o700)
            place.symlink_to(elsewhere)
        elif kind == "open":
            place.mkdir()
            place.chmod(0o777)
        else:
            place.write_text("")
    with pytest.raises(InputError, match="set XDG_RUNTIME_DIR to a folder that is yours alone"):
        lease("cpu", exclusive=True).__enter__()


def test_another_user_s_folder_is_not_used(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in places:
        place.mkdir(mode=0o700)
    uid = os.getuid()
    monkeypatch.setattr(leasing, "folders", lambda: places)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(InputError, match="it is not the user's alone"):
        lease("cpu", exclusive=True).__enter__()


def test_without_a_runtime_folder_the_one_for_temporary_files_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused() -> Path:
        raise PermissionError("runtime directory belongs to another user")

    monkeypatch.setattr(platformdirs, "user_runtime_path", refused)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert folders() == (tmp_path / f"mcfuser-{os.getuid()}",)
