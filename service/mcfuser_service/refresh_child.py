"""The process in which stale kernels are measured again while no job waits (service.idle)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from mcfuser.errors import LimitError
from mcfuser.tune.lookup import Ages
from mcfuser_db import Storage
from mcfuser_service.kept import every_kernel, refreshed


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Measures the stale kernels of the database `store` again, each within `seconds`; the answer
    has the number of those that were `refreshed` and that `failed`."""
    counts, ages = {"refreshed": 0, "failed": 0}, Ages()
    with closing(Storage(request["store"])) as store:
        for row in list(every_kernel(store)):
            try:
                counts["refreshed"] += refreshed(store, row, ages, request["seconds"])
            except LimitError:  # its device is not here, or it is searched anew when asked for
                counts["failed"] += 1
    return counts
