"""The chain of docs/architecture.md on its way through the rooms, every station computed once.

Nothing is measured: `ANSWER` is what the measuring process said once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np

from mcfuser.backend import Backend, Kernel
from mcfuser.backends import backend_of
from mcfuser.chain import Chain, from_json
from mcfuser.codegen import tensorir
from mcfuser.codegen.tensorir.source import TensorirSource
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.measure.request import Measured
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.expression import parse
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Plan
from mcfuser.space.prune import PruneStep, Space, distinct, parted, prune, space
from mcfuser.space.schedule import Schedule
from mcfuser.tune.budget import Budget
from mcfuser.tune.expected import pruned
from mcfuser.tune.tuned import Tuned, TuneOptions

ROOT = Path(__file__).parent.parent
CHAIN = ROOT / "examples" / "chains" / "attention.json"
EXTENTS = {"b": 4, "m": 256, "n": 256, "k": 64, "h": 64}
"""Those of the page's chain: small, so that texts are short."""
EXPRESSION, TILES = "mh.nk", {"m": 64, "n": 64, "k": 64, "h": 64}
NAME = "kernel_attention"
GPU = CATALOGUE["nvidia/h200"]
CPU = Device("cpu", "cpu", "znver3", 2, (("float32", 1.1e11),), 1.4e10, 512 << 10, 256)
"""A CPU whose figures do not change from run to run, as those of the CPU at hand do."""
ANSWER = Measured(
    seconds=2.19e-3, error=2.08e-4,
    times=(2.19e-3, 7.78e-4, 8.84e-3, 7.41e-4, 7.12e-4, 3.58e-3, 2.25e-3),
    conditions={"share": 0.343, "busy": True, "cores": 2, "load": 9.36, "pressure": 99.07,
                "in_turns": 1},
)  # fmt: skip
"""What the measuring process answered on 2026-11-22 on two cores that much else kept busy, seconds
to three digits. An example: times and conditions differ from run to run."""
MICRO = TensorirKnobs(rows=6, vectors=2, lanes=8)
"""The register micro-tile of the CPU's kernel."""


class Walk:
    """One chain on its way through the rooms; every station is computed once."""

    @cached_property
    def chain(self) -> Chain:
        return from_json(json.loads(CHAIN.read_text()) | {"axes": EXTENTS})

    @cached_property
    def gpu(self) -> Backend:
        return backend_of(GPU)

    @cached_property
    def whole(self) -> Space:
        return space(self.chain)

    @cached_property
    def pruned(self) -> tuple[Space, tuple[PruneStep, ...]]:
        return prune(self.whole, GPU)

    @cached_property
    def distinct(self) -> Space:
        return distinct(self.pruned[0])

    @cached_property
    def parted(self) -> Space:
        return parted(self.distinct, GPU)

    @cached_property
    def candidates(self) -> Candidates:
        return candidates(self.parted, KnobTable(self.gpu.knobs, GPU), self.gpu.feasible)

    def plan(self, tiles: Mapping[str, int]) -> Plan:
        return Plan(self.whole.program, parse(EXPRESSION), self.whole.dead(tiles))

    @cached_property
    def schedule(self) -> Schedule:
        return self.plan(TILES).schedule(TILES)

    @cached_property
    def cpu_source(self) -> TensorirSource:
        return tensorir.generate(self.schedule, NAME, MICRO)

    @cached_property
    def kernel(self) -> Kernel:
        source = self.cpu_source
        return Kernel(self.chain, source.text, tensorir.to_record(source))

    @cached_property
    def tuned(self) -> Tuned:
        """A record as tuning for the CPU keeps one after one trial, of `ANSWER`. What depends on
        the sources, digests and versions, is left out."""
        plan, kernel = self.plan(TILES), self.kernel
        left, stages = pruned(self.chain, CPU, TuneOptions(), backend_of(CPU))
        table = KnobTable(backend_of(CPU).knobs, CPU)
        every = len(candidates(left, table, backend_of(CPU).feasible))
        columns = table.columns(np.asarray([table.number(MICRO)], np.int64))
        tiles = np.asarray([[*TILES.values()]], np.int64)
        predicted = backend_of(CPU).estimate(plan, tiles, columns, CPU)[0]
        return Tuned(
            key="", chain=self.chain, device=CPU.name, expression=str(plan.expression), tiles=TILES,
            lowering=asdict(MICRO), source=kernel.source, binary=b"",
            predicted=float(predicted), measured=ANSWER.seconds, error=ANSWER.error,
            stages={**stages, "distinct": left.candidates, "lowered": every}, trials=1,
            conditions=ANSWER.conditions, launch=kernel.launch, budget=Budget(1, 60.0, "trials"),
        )  # fmt: skip
