"""The real compiler, as a worker calls it. Imported by worker processes only: it loads TVM."""

from __future__ import annotations

from db import Store
from mcfuser import tuned
from mcfuser.compile import Artifact, compile_model
from mcfuser.device import device_named
from service.schemas import Options


def compile_job(
    model: bytes, options: Options, cache: tuned.Cache, progress: tuned.Progress
) -> Artifact:
    """The module and report of a posted model; raises InputError as `compile_model` does."""
    wanted = tuned.Options(seed=options.seed, trials=options.trials, timeout=options.timeout)
    device = device_named(options.device)
    if isinstance(cache, Store):
        device = cache.probed(device)
    return compile_model(model, device, cache, wanted, options.shapes, progress)
