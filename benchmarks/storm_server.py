"""`mcfuser serve` for benchmarks/service_storm.py: `python storm_server.py SETTINGS`.

SETTINGS is a JSON object of ServiceSettings. Models whose producer is PRETENDED are not compiled:
their process (storm_child.py) waits for some tenths of a second. All others are compiled.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcfuser.process.confined import Confined, Limits
from mcfuser.tune.progress import Listener, Progress
from mcfuser_db import Storage
from mcfuser_service.compiler import Compiler
from mcfuser_service.schemas import JobOptions
from mcfuser_service.serve import serve
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.worker import CompiledOutput, CompileFunction

PRETENDED = "storm: pretended"
"""The producer of the models that are not compiled."""


@dataclass(frozen=True)
class Pretended:
    """What a model that is not compiled becomes."""

    module: bytes
    report: dict[str, Any]


def load(settings: ServiceSettings) -> CompileFunction:
    """A compiler of which every job runs in a process of its own, as mcfuser's does."""
    compiler = Compiler(settings)

    def compile_one(
        model: Path, options: JobOptions, store: Storage, listener: Listener
    ) -> CompiledOutput:
        if PRETENDED.encode() not in model.read_bytes():
            return compiler(model, options, store, listener)
        latest = Progress("start")

        def tell(message: Any) -> None:
            nonlocal latest
            latest = Progress("waiting", message["step"], message["of"])

        def check() -> None:
            listener(latest)
            time.sleep(0)

        with Confined("storm_child", Limits(memory=settings.job_memory)) as process:
            answer = process.run({"model": str(model)}, tell, check)
        return Pretended(answer["module"].encode(), {"model": {"sha256": answer["sha256"]}})

    return compile_one


if __name__ == "__main__":
    serve(ServiceSettings(**json.loads(sys.argv[1])), "storm_server:load")
