"""Archives of a model's folder: what is unpacked, and what is refused."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mcfuser.errors import ModelError, SpaceError
from mcfuser.graph import archive as archives
from mcfuser.graph.archive import HEAD, is_archive, unpacked
from mcfuser.graph.delivery import delivered
from mcfuser.graph.inspection import inspect
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from tests.support.archives import tarred, zipped
from tests.support.paths import FIXTURES

EXTERNAL = FIXTURES / "external"
FILES = {"m.onnx": b"model", "sub/m.data": bytes(range(256)) * 5}
Make = Callable[[Mapping[str, bytes]], bytes]


MAKERS: dict[str, Make] = {
    "zip": zipped,
    "stored zip": lambda files: zipped(files, zipfile.ZIP_STORED),
    "tar": tarred,
    "tar.gz": lambda files: tarred(files, "w:gz"),
}


def refused(data: bytes, folder: Path, limits: ModelLimits = DEFAULTS) -> str:
    """The sentence; nothing may be written outside of the folder for what is unpacked."""
    path, inside = folder / "archive", folder / "a" / "b"
    path.write_bytes(data)
    inside.mkdir(parents=True)
    with pytest.raises(ModelError) as told:
        unpacked(path, inside, limits)
    assert sorted(p.name for p in folder.iterdir()) == ["a", "archive"]
    assert [p.name for p in (folder / "a").iterdir()] == ["b"]
    assert not [p for p in inside.rglob("*") if p.is_symlink()]
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("kind", MAKERS)
def test_files_are_unpacked_as_they_were(kind: str, tmp_path: Path) -> None:
    data = MAKERS[kind](FILES)
    assert is_archive(data[:HEAD])
    (tmp_path / "archive").write_bytes(data)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert unpacked(tmp_path / "archive", folder, DEFAULTS) == folder / "m.onnx"
    for name, content in FILES.items():
        assert (folder / name).read_bytes() == content
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_no_model_is_taken_for_an_archive() -> None:
    for path in FIXTURES.rglob("*.onnx"):
        assert not is_archive(path.read_bytes()[:HEAD]), path
    assert not is_archive(b"") and not is_archive(b"PK") and not is_archive(bytes(HEAD))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_model_and_its_weights_are_read_from_an_archive(kind: str, tmp_path: Path) -> None:
    files = {f"folder/{p.name}": p.read_bytes() for p in EXTERNAL.iterdir()}
    (tmp_path / "archive").write_bytes(MAKERS[kind](files))
    with delivered(tmp_path / "archive", None, DEFAULTS) as (model, folder):
        inspect(model, {}, folder=folder)
        assert folder is not None and folder.files == ("linear.onnx.data",)
    (tmp_path / "archive").write_bytes(
        MAKERS[kind]({k: v for k, v in files.items() if "da" not in k})
    )
    with (
        delivered(tmp_path / "archive", None, DEFAULTS) as (model, folder),
        pytest.raises(ModelError, match="not in the model's folder"),
    ):
        inspect(model, {}, folder=folder)


def test_what_is_delivered_with_a_folder_is_no_archive(tmp_path: Path) -> None:
    data = zipped(FILES)
    (tmp_path / "m.onnx").write_bytes(data)
    with delivered(tmp_path / "m.onnx", tmp_path, DEFAULTS) as (model, _):
        assert model == data
    (tmp_path / "m.onnx").write_bytes(b"model")
    with delivered(tmp_path / "m.onnx", None, DEFAULTS) as (model, folder):
        assert (model, folder) == (b"model", None)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({**FILES, "/etc/evil": b"x"}, "'/etc/evil' of the archive has a path that leads out"),
        ({**FILES, "../evil": b"x"}, "'../evil' of the archive has a path that leads out"),
        ({**FILES, "sub/../../../evil": b"x"}, "a path that leads out of it"),
        ({**FILES, "x/..": b"x"}, "a path that leads out of it"),
        ({**FILES, "m.onnx/x": b"x"}, "cannot be unpacked: Not a directory|File exists"),
        ({"a/b": b"x", **FILES, "a": b"y"}, "cannot be unpacked: (File exists|Is a directory)"),
        ({**FILES, "./m.onnx": b"x"}, "has two members './m.onnx'"),
        ({**FILES, "n" * 300: b"x"}, "cannot be unpacked: File name too long"),
        ({"m.data": b"x"}, "has 0 ONNX files \\(none\\); put exactly one"),
        ({**FILES, "n/other.ONNX": b"x"}, "has 2 ONNX files \\('m.onnx', 'n/other.ONNX'\\)"),
        ({}, "the archive (has 0 ONNX files|is damaged)"),
    ],
)  # fmt: skip
def test_members_of_the_wrong_kind_are_refused(
    kind: str, files: Mapping[str, bytes], words: str, tmp_path: Path
) -> None:
    data = MAKERS[kind](files)
    if not files and kind != "tar.gz":
        data = data.ljust(HEAD, b"\0") if kind == "tar" else b"PK\x03\x04" + data
    assert re.search(words, refused(data, tmp_path))


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"?"],
)
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:") as archive:
        info = tarfile.TarInfo("w.bin")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    assert "'w.bin' of the archive is a link, pipe, device" in refused(made.getvalue(), tmp_path)


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(mode: int, tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = zipfile.ZipInfo("w.bin")
        info.external_attr = (mode | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert "'w.bin' of the archive is a link, pipe or device" in refused(made.getvalue(), tmp_path)


def test_other_compressions_and_encryption_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    said = refused(zipped(FILES, zipfile.ZIP_LZMA), tmp_path / "1")
    assert "compressed by method 14" in said
    (tmp_path / "2").mkdir()
    data = bytearray(zipped({"m.onnx": b"model"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "is encrypted" in refused(bytes(data), tmp_path / "2")


@pytest.mark.parametrize("kind", MAKERS)
def test_bytes_and_members_are_bounded(kind: str, tmp_path: Path) -> None:
    total = sum(map(len, FILES.values()))
    bomb = MAKERS[kind]({"m.onnx": b"model", "w": bytes(50 << 20)})
    for number, (data, limits, words) in enumerate([
        (MAKERS[kind](FILES), ModelLimits(unpacked_bytes=total - 1), f"at least {total} bytes"),
        (MAKERS[kind](FILES), ModelLimits(members=1), "at least 2 members; the limit is 1"),
        (MAKERS[kind](FILES), ModelLimits(model_bytes=4), "'m.onnx' has 5 bytes; the limit is 4"),
        (bomb, ModelLimits(unpacked_bytes=1 << 20), "MCFUSER_MAX_UNPACKED_BYTES"),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        assert words in refused(data, folder, limits)
        written = sum(p.stat().st_size for p in folder.rglob("b/**/*") if p.is_file())
        assert written <= limits.unpacked_bytes


def test_a_size_that_is_a_lie_is_refused(tmp_path: Path) -> None:
    """A zip whose directory says less than its data inflates to: no more than that is written."""
    data = bytearray(zipped({"m.onnx": bytes(1 << 20)}))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 100)
    said = refused(bytes(data), tmp_path)
    assert "damaged" in said or "where it says" in said
    assert sum(p.stat().st_size for p in tmp_path.rglob("b/**/*") if p.is_file()) <= 100


@pytest.mark.parametrize("kind", MAKERS)
def test_no_damage_is_an_error_of_ours(kind: str, tmp_path: Path) -> None:
    """Each archive cut or changed somewhere is refused, or unpacked without harm."""
    data = MAKERS[kind](FILES)
    for number in range(0, len(data), max(1, len(data) // 60)):
        for spoilt in (
            data[:number],
            data[:number] + bytes([data[number] ^ 0xFF]) + data[number + 1 :],
        ):
            folder = tmp_path / f"{number} {len(spoilt)}"
            (folder / "in").mkdir(parents=True)
            (folder / "archive").write_bytes(spoilt)
            try:
                unpacked(folder / "archive", folder / "in", DEFAULTS)
            except ModelError as error:
                assert "\n" not in str(error)
            assert sorted(p.name for p in folder.iterdir()) == ["archive", "in"]


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(archives, "_private", full)
    (tmp_path / "archive").write_bytes(zipped(FILES))
    (tmp_path / "in").mkdir()
    with pytest.raises(SpaceError, match="no space"):
        unpacked(tmp_path / "archive", tmp_path / "in", DEFAULTS)
