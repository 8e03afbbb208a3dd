"""The folder that compile writes and run reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcfuser.cli.results import (
    check_writable,
    make_results,
    read_ports,
    read_report,
    write_whole,
)
from mcfuser.errors import InputError


def test_a_file_is_replaced_whole_and_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "module.so"
    path.write_bytes(b"old")
    with path.open("rb") as loaded:
        write_whole(path, b"new")
        assert (loaded.read(), path.read_bytes()) == (b"old", b"new")
    assert path.stat().st_mode & 0o777 == 0o644
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(InputError, match=r"module\.so' cannot be written: No such file"):
        write_whole(tmp_path / "none" / "module.so", b"")


def test_a_folder_that_cannot_be_written_to_is_told_at_once(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "newer")
    assert not (tmp_path / "new").exists()
    make_results(tmp_path / "new" / "newer")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file' is no folder that can be written to"):
        check_writable(tmp_path / "file" / "out")
    with pytest.raises(InputError, match=r"out' cannot be made"):
        make_results(tmp_path / "file" / "out")


def test_a_report_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert read_report(tmp_path) == {}
    report = {"device": "cpu", "shapes": {"x": [1, 2]}, "chains": []}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert read_report(tmp_path) == report


REPORTS = {
    "a list": [],
    "shapes in words": {"shapes": "x=1"},
    "an extent in words": {"shapes": {"x": ["1"]}},
    "a negative extent": {"shapes": {"x": [-1]}},
    "an extent without end": {"shapes": {"x": [1e400]}},
    "an axis for a shape": {"shapes": {"x": 4}},
    "a device that is none": {"device": 7},
    "a device of words": {"device": {"kind": "cpu"}},
    "a precision in words": {"precision": "fp16"},
    "a precision of another type": {"precision": {"dtype": "float8"}},
    "updates in place in words": {"in_place": "past=present"},
    "an update in place of a number": {"in_place": {"past": 7}},
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_of_other_types_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(REPORTS[name]))
    with pytest.raises(InputError, match=r"^report '.*compile the model again|must hold an object"):
        read_report(tmp_path)


def test_the_ports_of_a_report(tmp_path: Path) -> None:
    port = {"name": "x", "shape": [2, -1], "dtype": "float16"}
    (found,) = read_ports({"inputs": [port]}, tmp_path, "inputs")
    assert (found.name, found.shape, found.dtype) == ("x", (2, -1), "float16")
    for wrong in ({}, [7], [port | {"dtype": "O"}], [port | {"shape": "2"}], [port | {"name": 1}]):
        with pytest.raises(InputError, match="its inputs are of another kind"):
            read_ports({"inputs": wrong}, tmp_path, "inputs")
    with pytest.raises(InputError, match="that names the model's outputs"):
        read_ports({"inputs": [port]}, tmp_path, "outputs")
