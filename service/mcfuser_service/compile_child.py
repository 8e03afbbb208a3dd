"""The process in which a model is compiled (mcfuser.process.confined), for a worker and for the
command.

It loads TVM, keeps tuned kernels in the database, and may be killed at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import file_digest, sha256
from mmap import mmap
from pathlib import Path
from typing import Any, assert_never

from mcfuser.arguments.precision import narrow_type
from mcfuser.bisect import built_by, verify, verify_dynamic
from mcfuser.compile import LockedBuild, compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.extents import from_json, highest
from mcfuser.graph.delivery import delivered
from mcfuser.graph.embedded import released
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.load import bound
from mcfuser.graph.wire import ModelBytes
from mcfuser.lock import read_lock
from mcfuser.process.blocks import return_blocks
from mcfuser.revision import revision
from mcfuser.tune.progress import Note, Progress
from mcfuser.tune.tuned import Cache, MemoryCache, TuneOptions
from mcfuser_db import Storage
from mcfuser_service.counted import CountedCache
from mcfuser_service.settings import Team
from mcfuser_service.team import layered


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Compiles the model at the path `model`, and writes the module to the path `module`.

    `folder` is the path of the folder with external data; where it is None, `model` may be an
    archive.

    `request` has the `device` by name, `shapes` (extents by input, as mcfuser.extents writes them),
    `buckets` (the most that ranges of extents become), `in_place` (the outputs that are written
    into the memory of inputs, by these), `options` (the fields of
    `TuneOptions`), `store` (the URL of the database that keeps kernels, or None), `team` (the
    team's cache under it, as Team.to_json has it), `end` (when the module must be done, on
    time.monotonic(), or None), `limits` (the fields of `ModelLimits`),
    `check` (whether the module is compared with onnxruntime), `precision` (a name of
    mcfuser.arguments.precision, or None) and `lock` (the path of a mcfuser.lock that the module is
    built from, or None). `tell` is called with the
    progress and the notes. The answer has the `report`, which also says what the module was made
    from, by which revision, and when.
    """

    def listener(told: Progress | Note) -> None:
        match told:
            case Progress():
                tell({"progress": told.to_json()})
            case Note():
                tell({"note": told.words})
            case _:
                assert_never(told)

    return_blocks()
    listener(Progress("start"))
    end: float | None = request["end"]
    device, cache = device_named(request["device"]), MemoryCache()
    with ExitStack() as stack:
        kept: Cache = cache
        if request["store"] is not None:
            store = Storage(request["store"])
            stack.callback(store.close)
            device, kept = store.probed(device), layered(store, Team.from_json(request["team"]))
        kept = counted = CountedCache(kept)
        folder = Path(request["folder"]) if request["folder"] is not None else None
        limits = ModelLimits(**request["limits"])
        shapes = from_json(request["shapes"])
        model, data = stack.enter_context(delivered(Path(request["model"]), folder, limits))
        artifact = compile_model(
            model,
            device,
            kept,
            TuneOptions(**request["options"]),
            shapes,
            listener,
            built_by(end) if request["check"] else end,
            limits,
            data,
            narrow_type(request["precision"]),
            request["buckets"],
            request["in_place"],
            _locked(request, device.key),
        )
        library = Path(request["module"])
        library.write_bytes(artifact.module)
        released(artifact.module)
        checked: dict[str, Any] = {"skipped": "not asked for"}
        if request["check"]:
            listener(Progress("check"))
            seed = request["options"].get("seed", 0)
            if artifact.buckets is None:
                again = bound(model, highest(shapes), limits, data)
                checked = verify(artifact, library, again, seed, end)
                del again  # and its weights
            else:
                checked = verify_dynamic(artifact, library, seed, end)
        provenance = {
            "functions": checked.pop("functions", None),
            "check": checked,
            "shapes": request["shapes"],
            "model": _source(request, model, data),
            "module": _described(artifact.module),
            "revision": revision(),
            "cache": counted.answers(),
            "built": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
    return {"report": {**artifact.report, **provenance}}


def _source(
    request: Mapping[str, Any], model: ModelBytes, data: DataFolder | None
) -> dict[str, Any]:
    """What a module was made from: the model, the files with its weights, and the archive of both,
    if it was in one."""
    archive = _digest(Path(request["model"])) if request["folder"] is None and data else None
    external = data.digests() if data is not None else {}
    return {**_described(model), "external": external, "archive": archive}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _described(data: bytes | mmap) -> dict[str, Any]:
    described = {"sha256": sha256(data).hexdigest(), "bytes": len(data)}
    released(data)
    return described


def _locked(request: Mapping[str, Any], device: str) -> LockedBuild | None:
    """The lock that a module is built from; `device` is the device's key."""
    if request["lock"] is None:
        return None
    path = Path(request["lock"])
    lock = read_lock(path)
    model = _digest(Path(request["model"]))
    return LockedBuild(lock, path.name, lock.buckets(device, model))
