"""The hash of everything that a job's result depends on."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path
from uuid import uuid4

from mcfuser.devices.catalogue import HOST
from mcfuser.revision import revision
from mcfuser_service.schemas import JobOptions


def work_key(model: str, options: JobOptions, alone: bool = False) -> str:
    """A hash that is equal for equal models, options and code, and, for the CPU, equal processors.
    It is equal to no other where the job is to be `alone`, or has the option `retune`."""
    parts = {
        "model": model,
        "options": options.model_dump(mode="json"),
        "code": revision(),
        "processor": processor() if options.device == HOST else None,
    }
    if alone or options.retune:
        parts["once"] = uuid4().hex
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def processor() -> str:
    """A hash of the instruction sets of this machine's CPU, as the system lists them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = sorted({x for x in lines if x.startswith(("flags", "Features", "model name"))})
    words = "\n".join([platform.machine(), platform.processor(), *told])
    return hashlib.sha256(words.encode()).hexdigest()[:16]
