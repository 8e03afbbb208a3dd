"""Versions of what kernels are made with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

ABSENT = "absent"
"""The version of what is not installed."""


def package_version(package: str) -> str:
    """The installed package's version, or ABSENT."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT
