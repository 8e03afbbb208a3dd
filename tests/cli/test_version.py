"""`mcfuser --version`."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from mcfuser.cli.command import app
from mcfuser.cli.terminal import ended
from mcfuser.revision import revision


def test_versions_are_told_of_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = importlib.metadata.version

    def version(package: str) -> str:
        if package == "triton":
            raise importlib.metadata.PackageNotFoundError(package)
        return known(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert ended(app, ("--version",)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"mcfuser {revision()}",
        f"Python {platform.python_version()}",
        f"TVM {known('apache-tvm')}",
        f"TVM FFI {known('apache-tvm-ffi')}",
        "Triton is not installed",
    ]
