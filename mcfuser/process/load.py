"""The import of a large module by a process that has just begun."""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType


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
