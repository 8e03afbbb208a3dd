"""Readings of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcfuser_db import constants
from mcfuser_db.database import Database
from mcfuser_db.models import Probed

if TYPE_CHECKING:
    from mcfuser.device import Device


class ProbeStore(Database):
    """What the last probe of each device has read."""

    def probed(self, device: Device) -> Device:
        """The device with the readings of its last probe, and with the constants that were fitted
        to its own candidates; the device itself if there is neither."""
        with self._read() as session:
            last = session.get(Probed, device.name)
            fitted = constants.constants_of(session, device.name)
        if fitted is not None:
            device = replace(device, costs=tuple(fitted.constants.items()))
        if last is None:
            return device
        readings = tuple((str(n), float(v)) for n, v in sorted(last.readings.items()))
        return replace(device, readings=readings)

    def keep_probe(
        self, device: str, readings: Mapping[str, float], conditions: Mapping[str, Any]
    ) -> None:
        """Keeps the readings of a device's probe, in place of earlier ones."""
        probed = Probed(
            device=device, readings=dict(readings), conditions=dict(conditions),
            created=self._now(),
        )  # fmt: skip
        with self._write.begin() as session:
            session.merge(probed)
