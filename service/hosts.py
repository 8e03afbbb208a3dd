"""Names of hosts: which of them mean this machine, and which a request may have come for."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

# RFC 9110's Host: a name or an address, then perhaps a port.
_HOST = re.compile(
    r"(?P<name>[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~-]+)?\])"
    r"(?::(?P<port>[0-9]{0,5}))?"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached by that name or address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str | None:
    """The name in a Host header, in small letters without brackets; None where it is malformed."""
    found = _HOST.fullmatch(header)
    if found is None:
        return None
    name = found["name"].lower().rstrip(".")
    if not name.startswith("["):
        return name
    try:
        return str(ipaddress.ip_address(name[1:-1]))
    except ValueError:
        return None


def is_allowed(host: str, listening: str, allowed: Collection[str]) -> bool:
    """Whether a server that listens on `listening` answers under the name `host`.

    On loopback it answers to loopback's names and to those allowed; elsewhere to those allowed,
    or to any name where none is said.
    """
    if host in allowed:
        return True
    return is_loopback(host) if is_loopback(listening) else not allowed
