"""Which mcfuser this is: its version, and a hash of its sources."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def revision() -> str:
    """The version of mcfuser, and a hash of its source: an edited checkout is another version."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return f"{version('mcfuser')}+{digest.hexdigest()[:12]}"
