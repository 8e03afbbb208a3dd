"""Addresses of servers and of their jobs."""

from __future__ import annotations

import re

JOB = re.compile(
    r"(?P<server>https?://[^/?#\s]+(?:/[^?#\s]*?)?)/v1/jobs/(?P<job>[0-9a-fA-F-]{36})/?"
)
"""The address of a job."""


def public(address: str) -> str:
    """An address without a user's name and password."""
    return re.sub(r"(?<=//)[^/@]*@", "", address)
