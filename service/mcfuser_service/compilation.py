"""Compiles a model in a process with limits, for a worker and for the command."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from mcfuser.errors import LimitError
from mcfuser.extents import BUCKETS, InputShapes, to_json
from mcfuser.process.confined import Confined, Limits, Stopped
from mcfuser.tune.progress import Listener, Note, Progress
from mcfuser_service.settings import Team

_MODULE = "mcfuser_service.compile_child"


@dataclass(frozen=True)
class CompileResult:
    """A compiled module, whose bytes are mapped, and the report of its compilation."""

    module: mmap
    report: dict[str, Any]


@dataclass(frozen=True)
class CompileRequest:
    """A model to compile, and how.

    `folder` has the model's external data; where it is None, `model` may be an archive of its
    folder.
    `options` are fields of TuneOptions, `limits` fields of ModelLimits; others have their defaults.
    `timeout` is the time of the whole compilation, in seconds from `begun` (time.monotonic); if it
    is None, only tuning is limited. `store` is the URL of the database that keeps tuned kernels, or
    None. The module is compared with onnxruntime unless `check` is False. `precision` is a name of
    mcfuser.arguments.precision, or None. Ranges of extents become `buckets` at most.
    `in_place` has the outputs that are written into the memory of inputs, by these. Where there is
    a `lock`, the module is built as that file has it (mcfuser.lock). `team` is the team's
    cache under `store`.
    """

    model: Path
    device: str
    options: Mapping[str, Any]
    shapes: InputShapes
    store: str | None
    timeout: float | None = None
    begun: float = 0.0
    limits: Mapping[str, int] = field(default_factory=dict)
    folder: Path | None = None
    check: bool = True
    precision: str | None = None
    buckets: int = BUCKETS
    in_place: Mapping[str, str] = field(default_factory=dict)
    lock: Path | None = None
    team: Team = field(default_factory=Team)

    @property
    def end(self) -> float:
        """The end of the timeout, on time.monotonic()."""
        return self.begun + self.timeout if self.timeout is not None else math.inf


def grace(timeout: float) -> float:
    """The seconds after its timeout when a compilation is ended: 4.5, or 9 % of the timeout if that
    is more. With the time that ending takes, these are at most 5 s or 10 %."""
    return max(4.5, 0.09 * timeout)


def start(memory: int) -> Confined:
    """Starts a process for `compiled`, which loads TVM; it may use `memory` bytes."""
    return Confined(_MODULE, Limits(memory=memory))


def compiled(request: CompileRequest, process: Confined, listener: Listener) -> CompileResult:
    """Compiles a model in a process, which ends with it.

    `listener` is told of every stage and every note, and called at least ten times a second; it may
    raise an exception to end the compilation. Raises InputError as mcfuser.compile does, LimitError
    where a limit was reached, and Stopped where the process died.
    """
    latest = Progress("start")
    last = request.end + grace(request.timeout or 0.0)

    def tell(message: Mapping[str, Any]) -> None:
        nonlocal latest
        if "note" in message:
            listener(Note(message["note"]))
            return
        before, latest = latest, Progress.from_json(message["progress"])
        if str(latest) != str(before):
            listener(latest)

    def check() -> None:
        listener(latest)
        if time.monotonic() > last:
            raise LimitError(
                f"the model was not compiled within {request.timeout:g} s: the time was over at "
                f"the stage '{latest}'; give it more time"
            )

    with process:
        module = process.scratch / "module.so"
        asked = {
            "model": str(request.model.absolute()),
            "folder": str(request.folder.absolute()) if request.folder is not None else None,
            "module": str(module),
            "device": request.device,
            "options": dict(request.options),
            "shapes": to_json(request.shapes),
            "buckets": request.buckets,
            "in_place": dict(request.in_place),
            "store": request.store,
            "team": request.team.to_json(),
            "limits": dict(request.limits),
            "check": request.check,
            "precision": request.precision,
            "lock": str(request.lock.absolute()) if request.lock is not None else None,
            "end": request.end if request.timeout is not None else None,
        }
        try:
            answer = process.run(asked, tell, check)
        except Stopped as stopped:
            if stopped.why != "memory":
                raise
            raise LimitError(
                f"compiling the model took more than {process.limits.memory} bytes of memory at "
                f"the stage '{latest}'; raise MCFUSER_JOB_MEMORY",
                "memory",
            ) from None
        listener(latest)
        with module.open("rb") as file:
            return CompileResult(mmap(file.fileno(), 0, access=ACCESS_READ), answer["report"])
