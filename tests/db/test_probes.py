"""Readings of devices in every database."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.devices.catalogue import device_named
from mcfuser_db import Storage


class TestProbes:
    def test_a_device_has_the_readings_of_its_last_probe(self, store: Storage) -> None:
        l4, h200 = device_named("l4"), device_named("h200")
        assert store.probed(l4) == l4
        store.keep_probe(l4.name, {"turn": 1e-6, "launch": 3e-6}, {"sm_mhz": 900})
        store.keep_probe(l4.name, {"turn": 2e-6, "launch": 3e-6}, {"sm_mhz": 1000})
        assert store.probed(l4) == replace(l4, readings=(("launch", 3e-6), ("turn", 2e-6)))
        assert store.probed(l4).key == l4.key
        assert store.probed(h200) == h200
