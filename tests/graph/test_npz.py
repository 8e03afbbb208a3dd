"""Files of arrays: what is read is what the model takes, and every mistake is one sentence."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mcfuser.errors import InputError
from mcfuser.graph.load import ModelPort
from mcfuser.graph.npz import read_arrays, read_unnamed, write_arrays

PORTS = (ModelPort("ids", (2, 3), "int64"), ModelPort("/x/file", (4,), "float32"))
IDS, X = np.arange(6).reshape(2, 3), np.arange(4, dtype=np.float32)


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


def test_arrays_are_read_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez_compressed(path, **{"/x/file": X, "ids": np.asfortranarray(IDS)})
    found = read_arrays(path, PORTS)
    assert list(found) == ["ids", "/x/file"]
    assert (found["ids"] == IDS).all() and (found["/x/file"] == X).all()


def test_what_is_written_is_read_by_numpy_and_by_us(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    half = np.ones((2, 2), ml_dtypes.bfloat16)
    write_arrays(path, {"file": X, "a/b": half, "scalar": np.float64(2)})
    with np.load(path) as stored:
        assert stored.files == ["file", "a/b", "scalar"]
    assert [a.shape for a in read_unnamed(path)] == [(4,), (2, 2), ()]
    ports = [ModelPort("file", (4,), "float32"), ModelPort("a/b", (2, 2), "bfloat16"),
             ModelPort("scalar", (), "float64")]  # fmt: skip
    assert read_arrays(path, ports)["a/b"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"ids": IDS}, r"no array for input '/x/file' \(float32 4\); there is 'ids'"),
        ({}, "no array for input 'ids'.*there is no array"),
        ({"ids": IDS, "/x/file": X, "more": X}, "'more', which is no input of the model; its"),
        ({"ids": IDS.astype(np.int32), "/x/file": X}, "is int32 2x3; the input takes int64 2x3"),
        ({"ids": IDS.T, "/x/file": X}, "is int64 3x2; the input takes int64 2x3"),
        ({"ids": IDS, "/x/file": X.astype(">f4")}, "is >f4 4; the input takes float32 4"),
        ({"ids": IDS, "/x/file": X[0]}, "is float32 scalar; the input takes float32 4"),
        ({"ids": IDS, "/x/file": np.array([{}] * 4)}, "is object 4; the input takes float32 4"),
    ],
)
def test_what_is_found_and_what_is_wanted_are_named(
    arrays: dict[str, np.ndarray], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        read_arrays(saved(tmp_path / "in.npz", **arrays), PORTS)
    assert "\n" not in str(refused.value)


def whole() -> bytes:
    data = io.BytesIO()
    np.savez(data, **{"ids": IDS, "/x/file": X})
    return data.getvalue()


def with_member(content: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("ids.npy", content)
        archive.writestr("/x/file.npy", b"")
    return data.getvalue()


def header(words: str) -> bytes:
    text = words.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }\n"
FILES = {
    "empty": b"",
    "words": b"not a zip file",
    "cut short": whole()[:-40],
    "bytes changed": whole().replace(b"NUMPY", b"NUMPX"),
    "checksum": whole().replace(IDS.tobytes(), IDS[::-1].tobytes()),
    "an empty member": with_member(b""),
    "a header cut short": with_member(header(HUGE)[:20]),
    "no data": with_member(header(HUGE)),
    "code in the header": with_member(header("__import__('os').abort()\n")),
    "another version": with_member(header(HUGE).replace(b"\x01\x00", b"\x07\x00", 1)),
    "no shape": with_member(header("{'descr': '<i8'}\n")),
    "deep": with_member(header("(" * 5000 + "\n")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(FILES[name])
    with pytest.raises(InputError, match=r"in\.npz' cannot be read as an \.npz file") as refused:
        read_arrays(path, PORTS)
    assert "\n" not in str(refused.value)


def test_a_single_array_is_no_npz_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InputError, match=r"write it with numpy\.savez"):
        read_arrays(tmp_path / "x.npy", PORTS)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_arrays(tmp_path / "nowhere.npz", PORTS)


def test_an_array_that_is_said_to_be_huge_is_not_read(tmp_path: Path) -> None:
    """Its header alone is compared."""
    data = with_member(header("{'descr': '<i8', 'fortran_order': False, 'shape': (1 << 40,), }"
                              .replace("1 << 40", str(1 << 40))))  # fmt: skip
    path = tmp_path / "in.npz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is int64 1099511627776; the input takes int64 2x3"):
        read_arrays(path, PORTS)
