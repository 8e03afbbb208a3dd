"""`mcfuser --version`: which mcfuser this is, and what it makes kernels with."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import typer

from mcfuser.cli.console import say

COMPILERS = (("TVM", "apache-tvm"), ("TVM FFI", "apache-tvm-ffi"), ("Triton", "triton"))
"""The packages that kernels are made with: what they are called, and their names."""


def print_version(wanted: bool) -> None:
    """Prints the versions where they are `wanted`, and ends the command."""
    if not wanted:
        return
    for line in versions():
        say(line)
    raise typer.Exit


def versions() -> Iterator[str]:
    """A line for mcfuser with the hash of its sources, for Python, and for each compiler; none of
    them is loaded."""
    from importlib.metadata import PackageNotFoundError, version

    from mcfuser.revision import revision

    try:
        yield f"mcfuser {revision()}"
    except PackageNotFoundError:
        yield "mcfuser, not installed as a package"
    yield f"Python {platform.python_version()}"
    for name, package in COMPILERS:
        try:
            yield f"{name} {version(package)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"
