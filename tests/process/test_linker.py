"""The program that links modules is looked for in the path."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcfuser.process.linker import linker, without_linker


def test_the_first_one_in_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert linker() is None
    assert without_linker() == (
        "no C++ compiler is in the path, and TVM links modules with one of g++, gcc, clang++, "
        "clang, c++, cc; install one: the package g++ of most systems"
    )
    for name in ("cc", "gcc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert linker() == str(tmp_path / "gcc") and without_linker() is None
