"""Bytes under their digest."""

import hashlib
import os
from pathlib import Path

import pytest

from db import Blobs

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
    with pytest.raises(ValueError, match=DIGEST):
        blobs.read(DIGEST)


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
