"""How long it will take to build a module whose kernels are still being searched for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mcfuser.backend import Backend

WEIGHED = 25e-9
"""Seconds that building takes for each of the model's weights, above all for onnxruntime to load
them, whose outputs the module's are checked against: 12 for the 500 million of a diffusion
transformer."""
BUILT = 1.0
"""Seconds that building takes on an idle machine besides that, a share of what the import took
(Backend.building), what opening the device takes (Backend.starting) and what each chain takes
(Backend.installing). Tuning leaves the sum of these."""
CHOICE = 0.5
"""Seconds in which the model chooses a kernel: 0.1 to 0.7 were measured."""
AGAIN = 1.3
"""What a module takes for a kernel, as a multiple of the time that its compiler took for the kernel
alone."""
EACH = 0.1
"""Seconds that a chain's kernels take besides."""


@dataclass(frozen=True)
class ModuleToBuild:
    """A module of so many distinct `chains`, with so many `weights`.

    The import took `took` seconds, and `worked` seconds of processor time. On a busy machine, where
    the first is larger, building is slower by the same factor. The module is to be there by `end`,
    if that is given, of which it was `left` seconds away after the import, and tuning ends when it
    is `wanted` at the latest (time.monotonic, both).
    """

    took: float
    worked: float
    chains: int
    backend: Backend
    wanted: float = math.inf
    end: float | None = None
    left: float = math.inf
    weights: int = 0

    @property
    def slower(self) -> float:
        """By what factor this machine is busier than an idle one."""
        return max(1.0, self.took / max(self.worked, 1e-3))

    @property
    def leaves(self) -> bool:
        """Whether what is left to TVM is built sooner than the model chooses kernels for it and
        they are built."""
        return self.backend.leaving < CHOICE + self.backend.installing

    @property
    def module(self) -> float:
        """The seconds that the module takes without kernels."""
        own = BUILT + self.backend.starting + WEIGHED * self.weights
        return self.backend.building * self.took + own * self.slower

    def tuned_by(self, building: float) -> float:
        """When tuning must end, if building takes so many seconds."""
        return self.wanted if self.end is None else min(self.wanted, self.end - building)

    def seconds(self, compiled: Sequence[float] = ()) -> float:
        """The seconds that building is expected to take.

        `compiled` are those of a core in which the kernels of chains were compiled that are known
        so far. Where the time that was left is too short for the model to choose a kernel for each
        chain and for these to be built, only as many are counted as it is enough for: the others
        are left to TVM, if it `leaves` any, and take next to none.
        """
        each = self.backend.installing
        known = [min(each, AGAIN * seconds + EACH) for seconds in compiled]
        if known:  # of those that weigh most, which take others at most as long
            each = sum(known) / len(known)
        others: float = max(0, self.chains - len(known))
        if self.leaves:
            share = (CHOICE + self.backend.installing) * self.slower
            others = min(others, max(0.0, self.left - self.module) / share)
        return self.module + (sum(known) + each * others) * self.slower
