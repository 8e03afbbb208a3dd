"""The program that links modules."""

from __future__ import annotations

import shutil

LINKERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
"""The programs that TVM looks for, to link a module."""
ABSENT = f"no C++ compiler is in the path, and TVM links modules with one of {', '.join(LINKERS)}"
REMEDY = "install one: the package g++ of most systems"


def linker() -> str | None:
    """The path of the first that is there."""
    return next(filter(None, map(shutil.which, LINKERS)), None)


def without_linker() -> str | None:
    """What is missing and how to mend it, where none is there."""
    return None if linker() else f"{ABSENT}; {REMEDY}"
