"""Bytes under their digest."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from mcfuser_db import Blobs, LostBlob, Storage

DATA = b"model"
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_kept_bytes_come_back(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    assert blobs.put(DATA) == DIGEST
    assert blobs.put(DATA) == DIGEST
    assert blobs.has(DIGEST) and blobs.read(DIGEST) == DATA
    assert list((tmp_path / "arriving").iterdir()) == []


def test_what_is_not_kept_leaves_nothing(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    with pytest.raises(ConnectionError), blobs.arriving() as incoming:
        incoming.write(DATA)
        assert incoming.digest == DIGEST and incoming.flushed().read_bytes() == DATA
        raise ConnectionError
    assert not blobs.has(DIGEST)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    "digest", ["../../etc/passwd", "", DIGEST[:-1], DIGEST.upper(), DIGEST + "\n"]
)
def test_only_digests_are_paths(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        Blobs(tmp_path).path(digest)


def test_changed_bytes_are_not_given(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.path(blobs.put(DATA)).write_bytes(b"other")
    for look in (blobs.read, blobs.whole):
        with pytest.raises(LostBlob, match=f"{DIGEST} no longer holds"):
            look(DIGEST)
    assert blobs.whole(blobs.put(DATA)).read_bytes() == DATA
    blobs.path(DIGEST).unlink()
    for look in (blobs.read, blobs.whole):
        with pytest.raises(LostBlob, match=f"{DIGEST} is gone"):
            look(DIGEST)


def test_sweep_removes_old_uploads_only(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.put(DATA)
    for name, age in (("old", 0.0), ("new", None)):
        path = tmp_path / "arriving" / name
        path.write_bytes(b"half")
        if age is not None:
            os.utime(path, (age, age))
    assert blobs.sweep() == 1
    assert [p.name for p in (tmp_path / "arriving").iterdir()] == ["new"]
    assert blobs.has(DIGEST)


def test_damage_is_seen_and_healed_by_the_same_bytes(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    path = blobs.path(blobs.put(DATA))
    assert blobs.sound(DIGEST) and blobs.sound(DIGEST)
    for damaged in (DATA[:-1], b"", b"MODEL", DATA + b"\0"):
        path.write_bytes(damaged)
        assert not blobs.sound(DIGEST)
        assert blobs.put(DATA) == DIGEST
        assert blobs.sound(DIGEST)
    path.unlink()
    assert not blobs.sound(DIGEST)
    path.mkdir()
    assert not blobs.sound(DIGEST)


def test_a_sound_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(tmp_path)
    path = blobs.path(blobs.put(DATA))
    assert blobs.sound(DIGEST)
    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
        assert blobs.sound(DIGEST)
    os.utime(path, ns=(1, 1))
    assert blobs.sound(DIGEST)


def test_everything_is_its_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        root = tmp_path / "data" / "blobs"
        path = Blobs(root).path(Blobs(root).put(DATA))
    finally:
        os.umask(before)
    for folder in (root, root / "arriving", path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "blobs" / "arriving").mkdir(parents=True)
    for folder in (tmp_path / "blobs", tmp_path / "blobs" / "arriving"):
        folder.chmod(0o755)
    Blobs(tmp_path / "blobs")
    assert stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700


@pytest.mark.parametrize("existing", [True, False])
def test_sqlite_s_files_are_their_owner_s_alone(existing: bool, tmp_path: Path) -> None:
    path = tmp_path / "mcfuser.db"
    before = os.umask(0o022)
    try:
        if existing:
            path.touch(0o644)
        store = Storage(f"sqlite:///{path}")
        files = list(tmp_path.iterdir())
        store.close()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(p.stat().st_mode) for p in files if p.exists()} <= {0o600}
    assert path in files
