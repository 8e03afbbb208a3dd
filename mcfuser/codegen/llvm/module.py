"""The shared library of a TVM module for a CPU: kernels as they are, all else scheduled by TVM and
by `mcfuser.codegen.llvm.rest`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import tvm
from tvm import relax
from tvm.relax.backend import DispatchSampling, DispatchSortScan

from mcfuser.codegen.llvm import rest
from mcfuser.device import Device

NO_STORAGE_REUSE = {"tirx.disable_storage_rewrite": True}
"""Every tile of a kernel has memory of its own (codegen.tensorir.build.without_storage_reuse)."""


def build_library(module: tvm.IRModule, device: Device) -> bytes:
    """The shared library of a Relax module in which kernels are scheduled already."""
    executable = _build(module, device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.so"
        executable.export_library(str(path))
        return path.read_bytes()


def _build(module: tvm.IRModule, device: Device) -> relax.VMExecutable:
    target = cpu_target(device)
    with target, tvm.transform.PassContext(config=NO_STORAGE_REUSE):
        lowered = tvm.transform.Sequential(list(_passes()))(module)
        return tvm.compile(lowered, target=target, relax_pipeline=None)


def cpu_target(device: Device) -> tvm.target.Target:
    """The LLVM target of a CPU."""
    return tvm.target.Target({"kind": "llvm", "mcpu": device.arch, "num-cores": device.units})


def _passes() -> Iterable[tvm.transform.Pass]:
    """TVM's passes for a CPU, with this package's legalization and loops spread over the cores."""
    t = relax.transform
    return (
        DispatchSampling(), DispatchSortScan(),
        rest.legalize(), t.AnnotateTIROpPattern(), t.FoldConstant(), t.FuseOps(), t.FuseTIR(),
        t.DeadCodeElimination(["main"]), rest.spread,
        t.RewriteDataflowReshape(), t.ToNonDataflow(), t.RemovePurityChecking(),
        t.CallTIRRewrite(), t.StaticPlanBlockMemory(), t.LowerAllocTensor(), t.KillAfterLastUse(),
        t.LowerRuntimeBuiltin(), t.ComputePrimValue(), t.VMShapeLower(), t.AttachGlobalSymbol(),
    )  # fmt: skip
