"""The catalogue of devices: one TOML file for each, `devices/nvidia/h200.toml` for `nvidia/h200`.

A file holds the fields of `Device` except its name, which is the file's place. To add a device is
to add its file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mcfuser.device import Constants, Device
from mcfuser.errors import DeviceError

FOLDER = Path(__file__).parent
HOST = "cpu"
"""The name and the kind of the CPU at hand, which is no file: it is probed."""
REFERENCE = "nvidia/h200"
"""The device whose fitted constants stand in, scaled, for those of one that was not probed."""
EXAMPLE = "nvidia/a100"
"""The device of the papers' examples, for which spaces are printed unless another one is named."""
VENDOR = "nvidia"
"""The vendor that is meant where a name has none: `h200` is `nvidia/h200`."""


def _constants(table: Mapping[str, float]) -> Constants:
    return tuple((name, float(value)) for name, value in table.items())


FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "kind": str, "arch": str, "units": int, "bandwidth": float, "fast": int, "cache": int,
    "threads": int, "blocks": int,
    "peak": _constants, "readings": _constants, "costs": _constants,
}  # fmt: skip
"""What a file may hold, and how each of it is read."""


def read_device(path: Path) -> Device:
    """The device of a file `VENDOR/NAME.toml`. Raises DeviceError where the file lacks a field,
    has one that a device has not, or holds something else there."""
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
        known = {name: read(written.pop(name)) for name, read in FIELDS.items() if name in written}
        return Device(name=f"{path.parent.name}/{path.stem}", **known, **written)
    except (TypeError, ValueError, AttributeError) as error:
        raise DeviceError(
            f"device file '{path}' is not of the form of the others: {error}; compare it with "
            f"'{FOLDER / 'nvidia' / 'h200.toml'}'"
        ) from None


def _oldest_first(device: Device) -> tuple[int, str, str]:
    return len(device.arch), device.arch, device.name


CATALOGUE: Mapping[str, Device] = {
    device.name: device
    for device in sorted(map(read_device, FOLDER.glob("*/*.toml")), key=_oldest_first)
}
"""The GPUs by name, those of an older architecture first."""


def names() -> tuple[str, ...]:
    """The names that `device_named` knows."""
    return (HOST, *CATALOGUE)


def device_named(name: str) -> Device:
    """The device of that name: `cpu` is the one at hand, probed; the others are the catalogue's,
    with or without their vendor.

    Raises DeviceError that lists the names where the name is none of them.
    """
    if name == HOST:
        from mcfuser.devices.cpu import probe_cpu

        return probe_cpu()
    full = name if "/" in name else f"{VENDOR}/{name}"
    if full not in CATALOGUE:
        raise DeviceError(f"device '{name}' is not known; use one of {', '.join(names())}")
    return CATALOGUE[full]
