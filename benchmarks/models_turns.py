"""One model of `benchmarks/models.py`: compiled by mcfuser, then timed beside its peers in turns.

Reads one request as JSON from its standard input and answers with one line of JSON. A process has
one model, so that one that crashes or fills the memory spoils no other.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcfuser.backends import backend_of
from mcfuser.compile import compile_model
from mcfuser.device import Device
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.measure.lease import lease
from mcfuser.measure.tolerance import difference
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from models_cache import FolderCache
from models_contenders import ON_GPU, ON_HOST, Contender, timed_in_turns
from models_export import exported, lifted
from models_module import on_gpu, on_host
from models_peers import peers, reference
from models_table import OWN, kernels, spread
from models_zoo import Origin, made, zoo

TOLERANCE = {"float16": 2e-2, "float32": 1e-3}
"""Norm-wise relative errors above which a contender is not timed."""


@dataclass(frozen=True)
class TurnsRequest:
    """A model, the device's name in the catalogue, and how it is compiled and compared.

    `timeout` is in seconds; `cache` is a folder, or empty; with `lift`, nothing is compiled.
    """

    model: str
    device: str
    precision: str
    origin: Origin
    peers: Sequence[str]
    timeout: float
    cache: str
    threads: int
    seed: int
    lift: bool


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not stand between answers
    request = TurnsRequest(**json.load(sys.stdin))
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        answers.write(json.dumps(answered(request, Path(folder))) + "\n")
        answers.flush()


def answered(request: TurnsRequest, folder: Path) -> dict[str, Any]:
    """What is known of the model; `missing` has the reasons of contenders that are not timed."""
    device = device_named(request.device)
    host = backend_of(device).on_host
    module, inputs = made(
        zoo()[request.model], request.origin, getattr(torch, request.precision), request.seed
    )
    model = exported(module, inputs)
    _say(f"exported, {len(model) >> 20} MiB")
    found: dict[str, Any] = {"lifted": asdict(lifted(model, device))}
    if request.lift:
        return found
    missing, own = dict[str, str](), dict[str, Path]()
    try:
        found |= _compiled(request, device, model, folder / "module.so")
        own = {OWN: folder / "module.so"}
    except Exception as reason:  # whatever it is, the peers are timed without mcfuser
        missing[OWN] = _first(reason)
    found["missing"] = missing
    if not host and not torch.cuda.is_available():
        missing |= dict.fromkeys((*own, *request.peers), "no GPU is at hand")
        return found
    made_own = {n: partial(_own, host, path, inputs, request.threads) for n, path in own.items()}
    known = peers(host, model, module, inputs, request.threads)
    expected = reference(copy.deepcopy(module).float(), inputs, host)
    makes = made_own | {n: known[n] for n in request.peers}
    ready, errors = _ready(makes, expected, TOLERANCE[request.precision], missing)
    with lease(_leased(device, host), exclusive=True):
        times = timed_in_turns(ready, ON_HOST if host else ON_GPU)
        found["conditions"] = {} if host else _conditions(device)
    found["times"] = {n: spread(t, times.get(OWN)) for n, t in times.items()}
    found["errors"] = errors
    found["notes"] = {n: c.note for n, c in ready.items() if c.note}
    if OWN in ready:
        found["spent"] = _spent(ready[OWN])
    return found


def _compiled(request: TurnsRequest, device: Device, model: bytes, path: Path) -> dict[str, Any]:
    """Writes mcfuser's module to a file; seconds, kernels, and bytes of memory at most."""
    cache = FolderCache(Path(request.cache)) if request.cache else MemoryCache()
    before = _peak(resource.RUSAGE_SELF)
    artifact = compile_model(
        model, device, cache, TuneOptions(request.seed, timeout=request.timeout), {}
    )
    path.write_bytes(artifact.module)
    report = artifact.report
    _say(f"compiled, {report['seconds']}")
    peaks = {"before": before, "compiled": _peak(resource.RUSAGE_SELF),
             "child": _peak(resource.RUSAGE_CHILDREN)}  # fmt: skip
    return {"compiled": {"seconds": report["seconds"], "kernels": kernels(report["chains"]),
                         "kernel_times": report["times"], "module_bytes": len(artifact.module)},
            "peak_rss": peaks}  # fmt: skip


def _own(host: bool, path: Path, inputs: Mapping[str, Tensor], threads: int) -> Contender:
    arrays = [x.numpy() for x in inputs.values()]
    return on_host(path, arrays, threads) if host else on_gpu(path, arrays)


def _ready(
    makes: Mapping[str, Callable[[], Contender]],
    expected: Sequence[NDArray[np.generic]],
    limit: float,
    missing: dict[str, str],
) -> tuple[dict[str, Contender], dict[str, float]]:
    """The contenders whose outputs are right, and all errors; `missing` gets reasons."""
    ready, errors = dict[str, Contender](), dict[str, float]()
    for name, make in makes.items():
        try:
            one = make()
            pairs = zip(one.outputs(), expected, strict=True)
            errors[name] = max(difference(found, wanted) for found, wanted in pairs)
        except Exception as reason:  # libraries fail in many ways; the table says in which
            missing[name] = _first(reason)
            continue
        if errors[name] <= limit:
            ready[name] = one
        else:
            missing[name] = f"its error is {errors[name]:.1e}, and {limit:g} is allowed"
        _say(f"{name} is ready, error {errors[name]:.1e}")
    return ready, errors


def _spent(one: Contender) -> dict[str, Any]:
    try:
        return one.spent() if one.spent is not None else {}
    except Exception as reason:  # a profiler may not be allowed here, which spoils no times
        return {"unknown": _first(reason)}


def _leased(device: Device, host: bool) -> str:
    """The name under which a device is held while something is timed there."""
    if host:
        return HOST
    from mcfuser.backends.cuda.driver import find

    return f"gpu-{find(device).uuid}"


def _conditions(device: Device) -> dict[str, Any]:
    from mcfuser.backends.cuda.driver import find
    from mcfuser.backends.cuda.timing import conditions

    return conditions(find(device))


def _peak(whose: int) -> int:
    """The largest memory that a process had so far, in bytes."""
    return resource.getrusage(whose).ru_maxrss << 10


def _first(reason: Exception) -> str:
    lines = str(reason).strip().splitlines()
    return f"{type(reason).__name__}: {lines[0][:200]}" if lines else type(reason).__name__


def _say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
