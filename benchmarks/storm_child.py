"""The process of a job of benchmarks/service_storm.py that only pretends to compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

STEP = 0.02
"""Seconds between two messages."""


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """The module of a model is a text that names the model's bytes; it takes up to half a second,
    as they say."""
    digest = sha256(Path(request["model"]).read_bytes()).hexdigest()
    steps = 5 + int(digest[:2], 16) % 20
    for step in range(steps):
        tell({"step": step, "of": steps})
        time.sleep(STEP)
    return {"module": f"module of {digest}", "sha256": digest}
