"""In place of mcfuser_service.refresh_child: it counts the kernels, or never ends."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from mcfuser_db import Storage


def answer(request, tell) -> dict[str, Any]:
    with closing(Storage(request["store"])) as store:
        if store.kernel_count() == 0:
            time.sleep(3600)
        return {"refreshed": store.kernel_count(), "failed": 0}
