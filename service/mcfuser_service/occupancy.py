"""How many blocks of a kept kernel run at a time, told from its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mcfuser.backend import Kernel
from mcfuser.backends import backend_of
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.errors import InputError


def occupancy_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of a kernel's Occupancy (mcfuser.backend); None where its device has no such
    number or is not known, or the record does not tell what the kernel needs."""
    device = CATALOGUE.get(record.get("device", ""))
    if device is None:
        return None
    try:
        found = backend_of(device).occupancy(Kernel.from_json(record), device)
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None  # damaged, or of an earlier version
    return asdict(found) if found is not None else None
