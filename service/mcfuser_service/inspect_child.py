"""The process in which a posted model is checked (service.inspect)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Raises ModelError where the model, or the archive of its folder, is wrong; the answer is
    empty."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else numpy takes address space for every core
    from mcfuser.extents import from_json
    from mcfuser.graph.delivery import delivered
    from mcfuser.graph.inspection import inspect
    from mcfuser.graph.limits import ModelLimits

    shapes = from_json(request["shapes"])
    limits = ModelLimits(**request["limits"])
    with delivered(Path(request["model"]), None, limits) as (model, folder):
        inspect(model, shapes, limits, folder)
    return {}
