"""A device: what it can do and what it holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

Constants = tuple[tuple[str, float], ...]
"""Names and what was measured for them."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks and limits. Rates are per second, sizes in bytes.

    `units` counts multiprocessors or cores; `fast` is the memory that one block may use (the
    paper's Shm_max: shared memory, or a core's private cache); `bits` is the width of a CPU's
    vector register, 0 on a GPU. `costs` are the fitted model's constants for it (model.fitted), and
    `readings` what a probe has found, seconds (backends.cuda.probe); `cache` is the last level
    before memory. A multiprocessor holds `threads` threads and `blocks` blocks at most; both are 0
    on a CPU, and where they are not known. `matrix` names a CPU's unit for matrix products, empty
    where it has none; its flops per second in bfloat16 are the peak of "matrix". `vnni` tells
    whether its vectors multiply bytes, four at once.
    """

    name: str
    kind: str
    arch: str
    units: int
    peak: tuple[tuple[str, float], ...]
    bandwidth: float
    fast: int
    bits: int = 0
    costs: Constants = ()
    cache: int = 0
    readings: Constants = ()
    threads: int = 0
    blocks: int = 0
    matrix: str = ""
    vnni: bool = False

    def throughput(self, dtype: str) -> float:
        """Peak flops per second of products of that storage type, summed over the device."""
        rates = dict(self.peak)
        return rates.get(dtype, rates["float32"])

    @property
    def constants_key(self) -> str:
        """What the model's choice depends on besides `key`: a digest of `costs` and `readings`,
        empty where there are neither. No measured kernel depends on it."""
        if not self.costs and not self.readings:
            return ""
        return hashlib.sha256(repr((self.costs, self.readings)).encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        """What a tuned kernel depends on; measured peaks are not part of it."""
        units = "".join(f"/{u}" for u in (self.matrix, "vnni" if self.vnni else "") if u)
        return f"{self.name}/{self.arch}/{self.units}/{self.fast}/{self.bits}{units}"
