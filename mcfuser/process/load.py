"""The import of a large module by a process that has just begun, and what it leaves out."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType


def leave_out_torch() -> None:
    """Makes `import torch` fail in this process from now on, unless it is imported already.

    TVM's ffi imports torch wherever it is installed, and nothing here needs it: it takes 3 s, and
    17 GiB of address space with CUDA.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


def load(name: str) -> ModuleType:
    """Imports a module; Python's collector does not run meanwhile, nor later on what was imported.

    An import makes next to no garbage, and the collector takes a fifth of the import of TVM.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        module = import_module(name)
        gc.freeze()
    finally:
        if collects:
            gc.enable()
    return module
