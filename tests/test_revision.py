"""Which sources make a version of mcfuser."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from mcfuser import revision
from mcfuser.devices.catalogue import FOLDER


def test_code_and_devices_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def listed(files: Iterable[Path]) -> str:
        hashed.extend(files)
        return "0" * 64

    monkeypatch.setattr(revision, "source_hash", listed)
    assert revision.revision.__wrapped__().endswith("+000000000000")
    assert {Path(revision.__file__), FOLDER / "nvidia" / "h200.toml"} <= set(hashed)
    assert {p.suffix for p in hashed} == {".py", ".toml"}
