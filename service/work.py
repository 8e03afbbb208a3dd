"""What a job's result depends on, as one hash."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import mcfuser
from service.schemas import Options


def work_key(model: str, options: Options) -> str:
    """Equal for equal models, options and code; on the CPU also for equal processors. What is to be
    tuned again is equal to nothing."""
    parts = {
        "model": model,
        "options": options.model_dump(mode="json"),
        "code": revision(),
        "processor": processor() if options.device == "cpu" else None,
    }
    if options.retune:
        parts["once"] = uuid4().hex
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def revision() -> str:
    """The version of mcfuser, and a hash of its source: an edited checkout is another version."""
    assert mcfuser.__file__ is not None
    root = Path(mcfuser.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return f"{version('mcfuser')}+{digest.hexdigest()[:12]}"


@cache
def processor() -> str:
    """The instructions that this machine's CPU has, hashed where the system lists them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = sorted({x for x in lines if x.startswith(("flags", "Features", "model name"))})
    words = "\n".join([platform.machine(), platform.processor(), *told])
    return hashlib.sha256(words.encode()).hexdigest()[:16]
