"""The process in which a model is compiled, for the command and for a worker alike; see
`mcfuser.process.confined`. It loads TVM, keeps tuned kernels in the store, and may be killed at any
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from db import Store
from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.graph.limits import ModelLimits
from mcfuser.tune.tuned import Cache, MemoryCache, Options


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Compiles the model at the path `model` and writes the module to the path `module`.

    `device` is a name, `shapes` extents by input, `options` the fields of `tuned.Options`, `store`
    the URL of the database that keeps kernels, or None, `end` an instant on time.monotonic(), or
    None, and `limits` fields of `ModelLimits`. Tells stages; answers with the `report`.
    """

    def progress(stage: str, done: int, total: int) -> None:
        tell({"stage": stage, "done": done, "total": total})

    progress("start", 0, 0)
    device, cache = device_named(request["device"]), MemoryCache()
    with ExitStack() as stack:
        kept: Cache = cache
        if request["store"] is not None:
            store = Store(request["store"])
            stack.callback(store.close)
            device, kept = store.probed(device), store
        artifact = compile_model(
            Path(request["model"]).read_bytes(), device, kept, Options(**request["options"]),
            {name: tuple(shape) for name, shape in request["shapes"].items()}, progress,
            request["end"], ModelLimits(**request["limits"]),
        )  # fmt: skip
    Path(request["module"]).write_bytes(artifact.module)
    return {"report": artifact.report}
