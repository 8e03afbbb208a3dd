"""Which mcfuser this is: its version, and a hash of its sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def revision() -> str:
    """The version of mcfuser, and a hash of its sources: an edited checkout is another version."""
    files = sorted(p for p in Path(__file__).parent.rglob("*") if p.suffix in (".py", ".toml"))
    return f"{version('mcfuser')}+{source_hash(files)[:12]}"


def source_hash(files: Iterable[Path]) -> str:
    """The sha256 of files of this package, of their places in it and of what they hold, in their
    order."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
