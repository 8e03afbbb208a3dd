"""`mcfuser device`: what is known of a device."""

from __future__ import annotations

import json
from pathlib import Path

from mcfuser_db import Storage
from tests.support.command import mcfuser


def test_a_device_tells_its_readings_or_why_it_has_none(tmp_path: Path) -> None:
    store = Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}")
    store.keep_probe("nvidia/l4", {"launch": 3e-6}, {})
    store.close()
    told = mcfuser("device", "l4", "--json", data=tmp_path).stdout
    assert json.loads(told) == {"device": "nvidia/l4", "readings": {"launch": 3e-6}}
    assert "published rates" in mcfuser("device", "a100", data=tmp_path).stdout
    assert "is no GPU" in mcfuser("device", "cpu", data=tmp_path).stderr
