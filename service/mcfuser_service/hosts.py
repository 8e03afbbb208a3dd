"""Names of hosts: which of them mean this machine, and which a request may name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

# RFC 9110's Host: a name or an address, perhaps with a port.
_HOST = re.compile(
    r"(?P<name>[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~-]+)?\])"
    r"(?::(?P<port>[0-9]{0,5}))?"
)


def is_loopback(host: str) -> bool:
    """Whether a name or address is one of loopback, which only this machine can reach."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str | None:
    """The name in a Host header, in lower case and without brackets; None if it is malformed."""
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
    """Whether a server that listens on `listening` answers requests for the name `host`.

    On loopback it answers for loopback's names and for the allowed ones; elsewhere for the allowed
    ones, or for any name if none are given.
    """
    if host in allowed:
        return True
    return is_loopback(host) if is_loopback(listening) else not allowed
