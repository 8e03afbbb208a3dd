"""Files of tuning records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mcfuser.chain import Chain
from mcfuser.devices.catalogue import device_named
from mcfuser.tune.exchange import header, line_of
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import tune
from tests.support.benches import CHAIN, HashBench


@cache
def searched(chain: Chain = CHAIN, trials: int | None = None) -> Tuned:
    """A kernel for the CPU at hand that a search found, whose times are made up."""
    with HashBench() as bench:
        options = TuneOptions(trials=trials)
        return tune(chain, device_named("cpu"), MemoryCache(), options, worker=bench)


def line(tuned: Tuned, **changed: Any) -> str:
    """The line of a kernel, some of its fields changed."""
    written = line_of(tuned.to_json())
    assert written is not None
    return json.dumps({**json.loads(written), **changed})


def write(path: Path, *lines: str, first: Mapping[str, Any] | None = None) -> Path:
    path.write_text("\n".join([header() if first is None else json.dumps(first), *lines]) + "\n")
    return path
