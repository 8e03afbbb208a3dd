"""Modules and kernels as LLVM makes them without optimization, in a fifth of the time: for tests
that ask whether they are right."""

from __future__ import annotations

from functools import partial

import tvm

from mcfuser.codegen.llvm import module
from mcfuser.codegen.tensorir import build
from mcfuser.device import Device

_target, _host = module.cpu_target, build.host_target

kernel_passes = partial(build.kernel_passes, checked=False)
"""That of mcfuser.codegen.llvm.module: nothing checks arguments but the module's own entry."""


def cpu_target(device: Device) -> tvm.target.Target:
    """That of mcfuser.codegen.llvm.module, whose name this takes."""
    return _unoptimized(_target(device))


def host_target() -> tvm.target.Target:
    """That of mcfuser.codegen.tensorir.build."""
    return _unoptimized(_host())


def _unoptimized(target: tvm.target.Target) -> tvm.target.Target:
    return tvm.target.Target({**target.export(), "opt-level": 0})
