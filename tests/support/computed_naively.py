"""Models whose chains are computed by plain loops: what partitioning and lifting make of a model,
without a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.load import Loaded, load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.price import Price
from mcfuser.graph.selection import ChainMatch
from tests.support.lifted import computed
from tests.support.naive import primfunc


def both(
    model: onnx.ModelProto, loaded: Loaded, matches: Sequence[ChainMatch], folder: Path
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The outputs of a loaded model with plain kernels for some chains, each with onnxruntime's."""
    replacements = []
    for i, match in enumerate(matches):
        kernel = Installed(
            f"chain_{i}", match.chain, primfunc(match.chain, match.shapes, match.starts)
        )
        replacements.append(Replacement(match, (kernel,)))
    random = np.random.default_rng(0)
    given = {p.name: random.standard_normal(p.shape).astype(p.dtype) for p in loaded.inputs}
    found = computed(install(loaded.module, replacements), [*given.values()], folder)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(zip(found, session.run(None, given), strict=True))


def agreed(
    model: onnx.ModelProto,
    folder: Path,
    tolerance: float = 1e-5,
    price: Price | None = None,
    copies: bool = True,
) -> Partition:
    """The chains of a model, chosen by a price; asserts that the model with plain kernels in their
    places computes what onnxruntime does, however its pictures are stored between them. A device
    that `copies` a few elements in next to no time has others."""
    loaded = load(model.SerializeToString(), {})
    ways = [
        partition(loaded.module, 1e12, 1e11, price, last=last, copies=copies)
        for last in ("never", "always")
    ]
    turned = any(m.channels_last for m in ways[1].matches)
    for parted in ways if turned else ways[:1]:
        for a, b in both(model, loaded, parted.matches, folder):
            assert a.shape == b.shape and a.dtype == b.dtype
            scale = max(float(np.abs(b).max()), 1e-30)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
    return ways[0]
