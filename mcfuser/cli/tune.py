"""`mcfuser tune`: finds the best kernel of one chain."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mcfuser.cli.console import out, progress, until
from mcfuser.cli.deadline import interrupted, process_start
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import kernel_cache
from mcfuser.cli.options import (
    CacheOption,
    ChainArgument,
    DeviceOption,
    DtypeOption,
    JsonOption,
    RetuneOption,
    SeedOption,
    TimeoutOption,
    TrialsOption,
    read_chain,
    tuning,
)
from mcfuser.devices.catalogue import HOST, device_named


def tune(
    chain: ChainArgument,
    device: DeviceOption = HOST,
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    trials: TrialsOption = None,
    timeout: TimeoutOption = None,
    cache: CacheOption = True,
    retune: RetuneOption = False,
    source: Annotated[bool, typer.Option("--source", help="print the kernel's source")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tune one chain and print its best kernel."""
    begun = process_start()
    options, limit = tuning(seed, trials, timeout, retune)
    end = begun + limit if limit is not None else None
    with interrupted(end, limit):
        from mcfuser.report import show_kernel
        from mcfuser.tune.tuned import TuneOptions
        from mcfuser.tune.tuner import tune as search

        program, target = read_chain(chain, dtype), device_named(device)
        wanted = TuneOptions(**options)
        with kernel_cache(cache, target) as (kept, probed), progress() as tell:
            ends = time.monotonic() + wanted.timeout if end is None else end
            tuned = search(program, probed, kept, wanted, until(ends, tell), deadline=end)
    if as_json:
        print_document(tuned.to_json())
        return
    show_kernel(tuned, out)
    if source:
        print(tuned.source)
