"""Workers that measure by arithmetic and note what they were asked."""

from __future__ import annotations

import hashlib
import os
import re
import signal

from mcfuser.backend import Backend
from mcfuser.chain import Chain, gemm
from mcfuser.device import Device
from mcfuser.devices.catalogue import device_named
from mcfuser.measure.request import Measured
from mcfuser.tune import tried
from mcfuser.tune.tuned import TuneOptions
from mcfuser.tune.tuner import tune
from mcfuser_db import Storage
from tests.support.workers import StandIn

CHAIN = gemm(2, 128, 96, 64, 64)


def seconds_of(source: str) -> float:
    """A time that only the source decides, but for the name of its function: that is made of the
    key, which changes with the generators of code."""
    nameless = re.sub(r"kernel_[0-9a-f]+", "kernel", source)
    return 1e-6 * (1 + int(hashlib.sha256(nameless.encode()).hexdigest()[:6], 16) / 2**24)


class HashBench(StandIn):
    """A kernel takes as long as its source says; `alone` are the sources that were checked and
    timed one by one, `together` those that were timed as finalists. Sources in `wrong` are."""

    def __init__(self, device: Device | None = None, backend: Backend | None = None) -> None:
        super().__init__(device or device_named("cpu"), backend)
        self.alone: list[str] = []
        self.together: list[str] = []
        self.varied: list[str] = []
        self.wrong: set[str] = set()

    def measure(
        self, chain, programs, seed, together=False, varied=False, extents=(), **more
    ) -> list[Measured]:
        sources = ["".join(k.source for k in p) for p in programs]
        asked = self.together if together else self.varied if varied else self.alone
        asked += sources
        return [
            Measured(None, None, "its error is 1e+00, more than 1e-05")
            if s in self.wrong
            else Measured(seconds_of(s), 1e-7)
            for s in sources
        ]


class Mortal(HashBench):
    """Its process is killed when so many candidates have been measured."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def measure(self, chain, programs, seed, **more) -> list[Measured]:
        if len(self.alone) >= self.lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(chain, programs, seed, **more)


def search_until_killed(url: str, lives: int, batch: int, chain: Chain = CHAIN) -> None:
    """A search that keeps candidates in a database, `batch` together, in a process that is killed
    meanwhile."""
    tried.BATCH = batch
    with Mortal(lives) as bench:
        tune(chain, bench.device, Storage(url), TuneOptions(), worker=bench)
