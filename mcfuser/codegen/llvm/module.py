"""The shared library of a TVM module for a CPU: kernels as they are, all else scheduled by TVM and
by `mcfuser.codegen.llvm.rest`."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from pathlib import Path

import tvm
from tvm import relax
from tvm.relax.backend import DispatchSampling, DispatchSortScan

from mcfuser.codegen import arguments
from mcfuser.codegen.apart import export, set_apart
from mcfuser.codegen.arguments import given_are_checked
from mcfuser.codegen.llvm import rest
from mcfuser.codegen.llvm.recurrence import recurrences
from mcfuser.codegen.llvm.suppress import suppressions
from mcfuser.codegen.shapes import ordered_shapes
from mcfuser.codegen.tensorir.build import DOT_FEATURES, MATRIX_FEATURES, kernel_passes
from mcfuser.device import Device
from mcfuser.lowering.tensorir.matrix import AMX


def build_library(module: tvm.IRModule, device: Device) -> mmap.mmap:
    """The shared library of a Relax module in which kernels are scheduled already: the bytes of a
    file, which are mapped and not in memory."""
    target = cpu_target(device)
    with target, kernel_passes():
        light, apart = set_apart(tvm.transform.Sequential(list(_scheduled(device)))(module))
        lowered = tvm.transform.Sequential(list(_lowered()))(light)
        lowering = "default" if device.matrix == AMX else arguments.register()
        executable = tvm.compile(lowered, target=target, relax_pipeline=None, tir_pipeline=lowering)
    with tempfile.TemporaryDirectory() as folder:
        path, source = Path(folder) / "module.so", Path(folder) / "apart.c"
        if apart.constants:
            source.write_text(apart.source())
        export(executable, path, source)
        if apart.constants:
            apart.append(path)
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def cpu_target(device: Device) -> tvm.target.Target:
    """The LLVM target of a CPU."""
    features = [*MATRIX_FEATURES] if device.matrix == AMX else []
    features += [DOT_FEATURES[device.bits]] if device.vnni else []
    more = {"mattr": [f"+{f}" for f in features]} if features else {}
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": device.arch, "num-cores": device.units, **more}
    )


def _scheduled(device: Device) -> Iterable[tvm.transform.Pass]:
    """TVM's passes for a CPU, with this package's legalization and loops spread over the cores."""
    t = relax.transform
    return (
        DispatchSampling(), recurrences(device), suppressions(), rest.legalize(),
        DispatchSortScan(), t.AnnotateTIROpPattern(), t.FoldConstant(),
        t.FuseOps(), t.FuseTIR(), t.DeadCodeElimination(["main"]), rest.spread,
    )  # fmt: skip


def _lowered() -> Iterable[tvm.transform.Pass]:
    """TVM's passes from scheduled functions to the virtual machine's instructions."""
    t = relax.transform
    return (
        given_are_checked(),
        t.RewriteDataflowReshape(), t.ToNonDataflow(), t.RemovePurityChecking(), t.CallTIRRewrite(),
        t.StaticPlanBlockMemory(), t.LowerAllocTensor(), t.KillAfterLastUse(),
        t.LowerRuntimeBuiltin(), t.ComputePrimValue(), t.VMShapeLower(), ordered_shapes,
        t.AttachGlobalSymbol(),
    )  # fmt: skip
