"""The CPU at hand: TensorIR, compiled by TVM."""

from __future__ import annotations

from collections.abc import Mapping
from mmap import mmap
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.backend import Function, Kernel, Names, Occupancy
from mcfuser.backends.cpu.builder import SourceBuilder
from mcfuser.backends.versions import ABSENT, package_version
from mcfuser.chain import Chain, ChannelsLast, rows_merged, turned
from mcfuser.chain.recurrence import RecurrenceLimits
from mcfuser.codegen import tensorir
from mcfuser.device import Device
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.tensorir.neighbours import STEP, neighbours
from mcfuser.lowering.tensorir.winograd import TRANSFORMS, convolved
from mcfuser.model.sequential import sequential
from mcfuser.process.linker import without_linker
from mcfuser.space.knobs import Columns
from mcfuser.space.plan import Floats, Ints, Plan


class CpuBackend:
    """Kernels for the CPU at hand (mcfuser.backend.Backend)."""

    kind: str = "cpu"
    knobs: type = TensorirKnobs
    sources: tuple[str, ...] = (
        "errors.py",
        "expr.py",
        "chain",
        "algebra",
        "space",
        "lowering",
        "codegen/script.py",
        "codegen/tensorir",
    )
    soft: Mapping[str, int] = MappingProxyType({"sympy": 0, "apache-tvm-ffi": 0})
    """TVM and LLVM compile a kept kernel's text again, so they must be the same."""
    runner = "mcfuser.backends.cpu.runner"
    trusted = False
    has_constants = False
    on_host = True
    starting = 0.0
    building = 1.5
    installing = 0.5
    """LLVM compiles the kernels: 0.1 to 0.55 s were measured for a chain, on networks of 6 to 78
    chains and three machines."""
    leaving = 0.0
    limit = 20.0
    slowest = 2e9
    memory: int | None = 16 << 30
    lines = True
    walks = False  # passes over tiles are not worth it for so few positions
    integers = True

    def toolchain(self) -> tuple[tuple[str, str], ...]:
        packages = ("apache-tvm", "apache-tvm-ffi", "sympy")
        return (*((name, package_version(name)) for name in packages), ("llvm", _llvm()))

    def driver(self) -> str:
        return ""

    def tiled(self, chain: Chain, device: Device) -> Chain:
        """With weights on the right of products whose columns are few, and positions of a picture
        along one axis. A matrix unit takes them as they are: nobody has measured them otherwise."""
        return chain if device.matrix else rows_merged(turned(chain))

    def channels_last(self, device: Device) -> ChannelsLast:
        """Vectors lie along channels then. With a matrix unit pictures stay as they are: nobody has
        measured them otherwise."""
        return "never" if device.matrix else "always"

    def tf32(self, device: Device) -> bool:
        """Never: vectors have float32, and weights are packed for them."""
        return False

    def recurrences(self, device: Device) -> RecurrenceLimits:
        return RecurrenceLimits(("float32",))

    def feasible(
        self, plan: Plan, tiles: Ints, settings: Columns, device: Device
    ) -> NDArray[np.bool_]:
        """All but those whose pieces of a picture are not whole. Of the numbers of neighbours that
        are as many as there are, one is enough."""
        found = np.ones(len(tiles), bool)
        if (settings["neighbours"] > 1).any():
            found &= settings["neighbours"] < STEP * neighbours(plan, tiles)
        for out in TRANSFORMS:
            chosen = settings["winograd"] == out
            if chosen.any():
                found &= ~chosen | convolved(plan, tiles, out)
        return found

    def estimate(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        return sequential(plan, tiles, settings, device)

    def held(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        return np.zeros(len(tiles))

    def events(
        self, plan: Plan, tiles: Ints, settings: Columns, device: Device
    ) -> tuple[Floats, Floats]:
        raise NotImplementedError("the model of the CPU has no constants")

    def builder(self, device: Device, cores: int | None = None) -> SourceBuilder:
        return SourceBuilder()

    def unfit(self, kernel: Kernel, device: Device, measured: bool) -> str | None:
        return None

    def occupancy(self, kernel: Kernel, device: Device) -> Occupancy | None:
        """None: a core runs one thread of a kernel."""
        return None

    def missing(self) -> str | None:
        return None

    def lacking(self) -> str | None:
        return without_linker()

    def refusal(self, module: Any) -> str | None:
        return None

    def environment(self, device: Device) -> Mapping[str, str]:
        return dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS"), str(device.units))

    def renamed(self, kernel: Kernel, chain: Chain, names: Names) -> Kernel:
        _kept(kernel)
        source = tensorir.from_record(kernel.launch, kernel.source, names.tensors, names.axes)
        return Kernel(chain, source.text, tensorir.to_record(source))

    def function(
        self, kernel: Kernel, chain: Chain, names: Names, name: str,
        shapes: Mapping[str, tuple[int, ...]], starts: Mapping[str, int],
    ) -> Function:  # fmt: skip
        """The kept statements; only the function's parameters are declared anew."""
        from mcfuser.codegen.script import prim_func

        own = {old: shapes[new] for old, new in names.tensors.items() if new in shapes}
        first = {old: starts[new] for old, new in names.tensors.items() if new in starts}
        source = tensorir.with_shapes(_kept(kernel), kernel.chain, name, own, first)
        order = kernel.chain.inputs
        packed = tuple((order.index(n), panels) for n, panels in source.packed)
        return Function(name, prim_func(source.text), packed)

    def packed(
        self, function: Function, chain: Chain, constants: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The constants that the kernel wants in panels."""
        from mcfuser.codegen.tensorir.build import pack

        names = {chain.inputs[i]: panels for i, panels in function.packed}
        return {n: pack(constants[n], panels) for n, panels in names.items()}

    def library(self, module: Any, binaries: Any, device: Device) -> bytes | mmap:
        from mcfuser.codegen.llvm.module import build_library

        return build_library(module, device)


def _kept(kernel: Kernel) -> tensorir.TensorirSource:
    """The function of a kernel, by the names of its chain. Raises KeyError, TypeError or ValueError
    where this back end has not written the kernel's launch, or not its source."""
    chain = kernel.chain
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    source = tensorir.from_record(kernel.launch, kernel.source, *same)
    tensorir.check_parameters(source, chain)
    return source


def _llvm() -> str:
    """The LLVM that TVM was built with."""
    try:
        from tvm import get_global_func
    except ImportError:
        return ABSENT
    told = get_global_func("target.llvm_version_major", allow_missing=True)
    return str(told()) if told is not None else ABSENT


CPU = CpuBackend()
