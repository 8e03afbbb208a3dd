"""NVIDIA GPUs: Triton and Gluon, launched through the CUDA driver."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
from collections.abc import Mapping
from mmap import mmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.backend import Function, Kernel, Names, Occupancy
from mcfuser.backends.cuda.builder import CudaBuilder
from mcfuser.backends.versions import ABSENT, package_version
from mcfuser.chain import TF32, Chain, ChannelsLast, merged
from mcfuser.chain.recurrence import RecurrenceLimits
from mcfuser.codegen import triton
from mcfuser.codegen.cuda.cluster import recurrence_limits
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.device import Device
from mcfuser.lowering.triton.instructions import HOPPER, multiplies_tf32
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.lowering.triton.planned import planned
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.model import fitted
from mcfuser.model.feasible import feasible, spills_too_much
from mcfuser.model.occupancy import WARP, blocks_held
from mcfuser.process.linker import without_linker
from mcfuser.space.knobs import Columns
from mcfuser.space.plan import Floats, Ints, Plan

_DRIVER = Path("/sys/module/nvidia/version")


class CudaBackend:
    """Kernels for the NVIDIA GPUs of the catalogue (mcfuser.backend.Backend)."""

    kind: str = "cuda"
    knobs: type = TritonKnobs
    sources: tuple[str, ...] = (
        "errors.py", "expr.py", "chain", "algebra", "space", "lowering", "codegen/triton",
        "codegen/cuda/cubin.py", "codegen/cuda/descriptors.py", "codegen/cuda/kept.py",
        "codegen/cuda/rings.py",
    )  # fmt: skip
    soft: Mapping[str, int] = MappingProxyType({"sympy": 0, "triton": 2, "ptxas": 2})
    """A kept kernel is a binary, which no compiler makes again; a new minor version of one may make
    a better binary, so that is searched for."""
    runner = "mcfuser.backends.cuda.runner"
    trusted = True
    has_constants = True
    on_host = False
    starting = 3.0
    building = 0.6
    """0.3 to 0.6 of the import, besides what weights take (building.WEIGHED), on networks of 38 to
    500 million weights and two machines."""
    installing = 0.2
    """TVM compiles what launches the kernels: up to 0.12 s were measured for a chain, on networks
    of 8 to 49 chains and two machines."""
    leaving = 0.9
    """NVRTC compiles TVM's kernels, all in one text: 0.5 to 0.9 s were measured for a chain."""
    limit = 20.0
    slowest = float("inf")
    memory: int | None = None
    lines = False
    walks = True  # threads would share a sum over a whole window, and pass its parts to each other
    integers = False

    def toolchain(self) -> tuple[tuple[str, str], ...]:
        """Told without TVM, and without loading Triton."""
        packages = ("triton", "sympy")
        return (*((name, package_version(name)) for name in packages), ("ptxas", _ptxas()))

    def driver(self) -> str:
        """As the kernel's module tells it."""
        try:
            return _DRIVER.read_text().strip()
        except OSError:
            return ""

    def tiled(self, chain: Chain, device: Device) -> Chain:
        """With short axes merged: a position is written in digits where it becomes an address."""
        return merged(chain)

    def channels_last(self, device: Device) -> ChannelsLast:
        """A thread copies sixteen bytes of a position's channels at once, and two bytes where they
        lie by lines. Depthwise windows, of which threads lie along positions, are three times as
        slow otherwise."""
        return "dense"

    def tf32(self, device: Device) -> bool:
        """Those of the tensor cores of Ampere and later."""
        return multiplies_tf32(device.arch)

    def recurrences(self, device: Device) -> RecurrenceLimits:
        return recurrence_limits(device)

    def feasible(
        self, plan: Plan, tiles: Ints, settings: Columns, device: Device
    ) -> NDArray[np.bool_]:
        fits = feasible(plan, tiles, warps(settings), settings["stages"], device, settings["dot"])
        rounds = plan.program.chain.precision == TF32
        return fits if rounds else fits & (settings["dot"] != TF32)

    def estimate(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        return fitted.predicted(*self.events(plan, tiles, settings, device), fitted.costs(device))

    def held(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        made = TritonCandidates(
            plan, tiles, warps(settings), settings["stages"], settings["combine"] == "last",
            device.arch == HOPPER, tma=settings["tma"], dot=settings["dot"],
        )  # fmt: skip
        return made.registers

    def events(
        self, plan: Plan, tiles: Ints, settings: Columns, device: Device
    ) -> tuple[Floats, Floats]:
        return counted(device, plan, tiles, settings)

    def builder(self, device: Device, cores: int | None = None) -> CudaBuilder:
        return CudaBuilder(device, cores)

    def unfit(self, kernel: Kernel, device: Device, measured: bool) -> str | None:
        if kernel.resources["shared"] > device.fast:
            return f"it needs more shared memory than a block of {device.name} may have"
        if spills_too_much(kernel.resources["spills"]):
            return "nearly all its registers spill"
        return "its registers spill" if kernel.resources["spills"] and not measured else None

    def occupancy(self, kernel: Kernel, device: Device) -> Occupancy | None:
        """By the registers and the shared memory that the compiler has told. Of two kernels in a
        row the record has the larger needs of either, with which both are counted."""
        threads, used = int(kernel.launch["threads"]), kernel.resources
        registers, shared = np.asarray([used["registers"]]), np.asarray([used["shared"]])
        by = blocks_held(registers, shared, np.asarray([threads / WARP]), device)
        bound = min(by, key=lambda name: float(by[name][0]))
        blocks = int(by[bound][0])
        if blocks < 1 or not device.threads:
            return None
        return Occupancy(threads, blocks, bound, blocks * threads / device.threads)

    def missing(self) -> str | None:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no NVIDIA GPU is at hand: its driver is not installed"
        if not _installed("cuda.core"):
            return (
                "measuring on a GPU needs the package cuda-core, which is not installed; "
                "install mcfuser with its gpu extra: pip install 'mcfuser[gpu]'"
            )
        return None

    def lacking(self) -> str | None:
        """A linker, or something of NVIDIA's packages."""
        from mcfuser.codegen.cuda import module

        return without_linker() or module.lacking()

    def refusal(self, module: Any) -> str | None:
        from mcfuser.codegen.cuda.module import refusal

        return refusal(module)

    def environment(self, device: Device) -> Mapping[str, str]:
        return {}

    def renamed(self, kernel: Kernel, chain: Chain, names: Names) -> Kernel:
        source = triton.from_record(kernel.launch, kernel.source, names.tensors, names.axes)
        used = {name: kernel.resources[name] for name in ("shared", "registers", "spills")}
        return Kernel(chain, source.text, triton.to_record(source), kernel.binary, used)

    def function(
        self, kernel: Kernel, chain: Chain, names: Names, name: str,
        shapes: Mapping[str, tuple[int, ...]], starts: Mapping[str, int],
    ) -> Function:  # fmt: skip
        """What launches the kept binary as it was when it was measured."""
        from mcfuser.codegen.cuda import module

        source = triton.from_record(kernel.launch, kernel.source, names.tensors, names.axes)
        used = kernel.resources
        binary = Binary(
            kernel.binary, source.name, used["shared"], used["registers"], used["spills"],
            source.threads,
        )  # fmt: skip
        primfunc = module.launcher(source, binary, shapes, starts)
        counters = tuple(np.zeros(w.size, w.dtype) for w in module.counters(source))
        return Function(name, primfunc, binary=module.kernel(source, binary), counters=counters)

    def packed(
        self, function: Function, chain: Chain, constants: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {}

    def library(self, module: Any, binaries: Any, device: Device) -> bytes | mmap:
        from mcfuser.codegen.cuda.module import build

        return build(module, device, binaries)


def warps(settings: Columns) -> Ints:
    """Warps of a block that compute, as the model counts them: those of two warp groups where a
    candidate has warp groups."""
    computing: Ints = settings["warps"] * (1 + settings["groups"])
    return computing


def counted(device: Device, plan: Plan, tiles: Ints, settings: Columns) -> tuple[Floats, Floats]:
    """Events and seconds of memory of candidates, for the fitted model (fitted.counted). Warp
    groups do not wait for each other where a product is deferred."""
    events, dram_seconds = np.zeros((len(tiles), len(fitted.NAMES))), np.zeros(len(tiles))
    paced = settings["groups"] & planned(plan).defers
    for which, groups in ((~paced, False), (paced, True)):
        if which.any():
            some = {name: column[which] for name, column in settings.items()}
            made = fitted.lowered(
                plan, tiles[which], warps(some), some["stages"], some["combine"] == "last",
                device, some["tma"], some["dot"],
            )  # fmt: skip
            events[which], dram_seconds[which] = fitted.counted(made, device, groups)
    return events, dram_seconds


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _ptxas() -> str:
    """The assembler that Triton brings along."""
    spec = importlib.util.find_spec("triton")  # finds the package and does not load it
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "backends" / "nvidia" / "bin" / "ptxas"
        try:
            told = subprocess.run(
                [str(program), "--version"], capture_output=True, text=True, timeout=60
            )
        except OSError:
            continue
        if (words := re.search(r"\bV(\d+(?:\.\d+)*)", told.stdout)) is not None:
            return words[1]
    return ABSENT


CUDA = CudaBackend()
