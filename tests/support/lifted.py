"""Runs Relax modules in which chains are computed by plain functions."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import relax

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.cpu import probe_cpu


def computed(
    module: tvm.IRModule, values: Sequence[NDArray[Any]], folder: Path
) -> list[NDArray[Any]]:
    """The outputs of a module on this machine's CPU."""
    return run(build_library(module, probe_cpu()), values, folder)


def run(library: bytes, values: Sequence[NDArray[Any]], folder: Path) -> list[NDArray[Any]]:
    """The outputs of a module's shared library."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
        file.write(library)  # another one may be loaded from this folder still
    path = Path(file.name)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(v) for v in values])
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]
