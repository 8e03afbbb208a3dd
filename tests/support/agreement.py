"""A compiled module beside onnxruntime in this process, which has TVM loaded.

`mcfuser.graph.check` starts a process for each module, and tests/graph/test_check.py looks at that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from mcfuser.graph.draw import inputs
from mcfuser.graph.load import bound
from mcfuser.graph.session import session
from mcfuser.measure.tolerance import difference
from mcfuser.runtime import runner


def disagreement(
    library: bytes,
    model: bytes,
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> float:
    """The largest norm-wise relative error of a library's outputs on random inputs; the library is
    written to the folder."""
    fixed = bound(model, shapes or {})
    feeds = inputs(fixed, np.random.default_rng(seed))
    expected = session(fixed, onnxruntime.SessionOptions()).run(None, feeds)
    path = folder / "module.so"
    path.write_bytes(library)
    found = runner.arrays(runner.ready(path, list(feeds.values()), 2)())
    return max(difference(a, b) for a, b in zip(found, expected, strict=True))
