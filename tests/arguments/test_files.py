"""Files that the user names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcfuser.arguments.files import check_readable, read_json
from mcfuser.errors import InputError


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "zero").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(InputError, match="more than"):
        read_json(tmp_path / "zero", "chain file 'zero'")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    for path, found in ((pipe, "a pipe"), (Path("/dev/zero"), "device"), (tmp_path, "a folder")):
        with pytest.raises(InputError, match=f"model 'm' cannot be read: it is .*{found}"):
            check_readable(path, "model 'm'")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        check_readable(tmp_path / "none", "model 'm'")
