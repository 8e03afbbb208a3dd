"""What a job's result depends on, as one hash."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path
from uuid import uuid4

from mcfuser.devices.catalogue import HOST
from mcfuser.revision import revision
from service.schemas import JobOptions


def work_key(model: str, options: JobOptions) -> str:
    """Equal for equal models, options and code; on the CPU also for equal processors. What is to be
    tuned again is equal to nothing."""
    parts = {
        "model": model,
        "options": options.model_dump(mode="json"),
        "code": revision(),
        "processor": processor() if options.device == HOST else None,
    }
    if options.retune:
        parts["once"] = uuid4().hex
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def processor() -> str:
    """The instructions that this machine's CPU has, hashed where the system lists them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = sorted({x for x in lines if x.startswith(("flags", "Features", "model name"))})
    words = "\n".join([platform.machine(), platform.processor(), *told])
    return hashlib.sha256(words.encode()).hexdigest()[:16]
