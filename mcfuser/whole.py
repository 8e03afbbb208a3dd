"""Whole modules of one model that differ in their cover: each is built once, and they are timed in
turns, as users run them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

from mcfuser.build import DecidedModel, build
from mcfuser.devices.catalogue import HOST
from mcfuser.graph.draw import Feeds
from mcfuser.graph.embedded import released
from mcfuser.graph.partition import Partition
from mcfuser.graph.running import RunMode, timed_in_turns
from mcfuser.tune.tuned import Tuned


@dataclass
class WholeModules:
    """The modules of a model that were built so far, with what each was built of; `inputs` draws
    what they run on."""

    inputs: Callable[[], Feeds]
    built: list[tuple[DecidedModel, bytes | mmap]] = field(default_factory=list)

    def module(self, decided: DecidedModel) -> bytes | mmap:
        """The module of a decided model. Raises InputError where TVM cannot build it."""
        for known, module in self.built:
            if known.parted is decided.parted and _kernels(known) == _kernels(decided):
                return module
        self.built.append((decided, build(decided)))
        return self.built[-1][1]

    def keep(self, parted: Partition) -> None:
        """Drops all modules but that of a partition."""
        self.built = [pair for pair in self.built if pair[0].parted is parted]

    def seconds(self, covers: Sequence[DecidedModel], until: float) -> tuple[float, ...]:
        """The seconds of a run of each module, all timed in turns: on all cores of the host, or as
        captured graphs on a GPU.

        Raises InputError where one cannot be built or run, LimitError where that is not done
        `until` then (time.monotonic).
        """
        with tempfile.TemporaryDirectory(prefix="mcfuser-") as folder:
            paths = []
            for number, decided in enumerate(covers):
                paths.append(Path(folder) / f"{number}.so")
                module = self.module(decided)
                paths[-1].write_bytes(module)
                released(module)
            mode: RunMode = "host" if covers[0].device.name == HOST else "graph"
            feeds = self.inputs()
            return timed_in_turns(paths, feeds, mode, max(0.0, until - time.monotonic()))


def _kernels(decided: DecidedModel) -> list[tuple[Tuned, ...]]:
    """The kernels of a decided model's chains."""
    return [decided.decisions[m.chain.key].kernels for m in decided.parted.matches]
