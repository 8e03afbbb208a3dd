"""The process that says what kernels for a device are made with (service.explaining)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcfuser.backends import backend_of
from mcfuser.devices.catalogue import device_named
from mcfuser.tune.lookup import here


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """The answer is a mcfuser.tune.lookup.Here as JSON, with the device's rates: its `peak` by type
    and its `bandwidth`. `request` has the `device` by name, the `space` and `shifts` of the cache
    key."""
    device = device_named(request["device"])
    now = here(device, backend_of(device), request["space"], request["shifts"])
    return now.to_json() | {"peak": dict(device.peak), "bandwidth": device.bandwidth}
