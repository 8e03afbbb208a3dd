"""How the commands of `mcfuser cache` name devices, chains and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mcfuser.cli.options import devices_begun
from mcfuser.devices.catalogue import HOST, device_named, names
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser_db import Storage

KEY_DIGITS = 64
"""Hexadecimal digits of a key."""
LEAST_DIGITS = 6
"""Digits of a key that is not given whole."""

KernelDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help=f"kernels of this device alone: one of {', '.join(names())}",
        autocompletion=devices_begun,
    ),
]
KernelChainOption = Annotated[
    str | None, typer.Option("--chain", help="of this chain: its name or its key")
]


def device_name(name: str | None) -> str | None:
    """The full name of a device, without probing it. Raises InputError."""
    return name if name is None or name == HOST else device_named(name).name


def full_key(store: Storage, start: str) -> str:
    """The key of the kernel whose key begins so. Raises InputError where that is not one."""
    words = start.lower()
    if not LEAST_DIGITS <= len(words) <= KEY_DIGITS or set(words) - set("0123456789abcdef"):
        raise InputError(
            f"'{start[:80]}' is no key: give {LEAST_DIGITS} to {KEY_DIGITS} of its digits, as "
            "mcfuser cache list shows them"
        )
    found = store.keys_like(words)
    if not found:
        raise InputError(f"no kernel has a key that begins with {words}; see mcfuser cache list")
    if len(found) > 1:
        raise InputError(f"several kernels have keys that begin with {words}; give more digits")
    return found[0]
