"""A model of `benchmarks/models.py` as ONNX, and what of it no chain of mcfuser's computes."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tvm import relax

from mcfuser.device import Device
from mcfuser.graph.dataflow import Dataflow, dataflow, dtype, extents, sources
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.selection import ChainMatch
from models_zoo import FirstState

OPSET = 17


@dataclass(frozen=True)
class LiftedModel:
    """The products of a model, those in chains, and what no chain computes, counted by operator,
    dtype and shape.

    `views` are the reshapes and transposes among what no chain computes; they may still cost a
    copy.
    """

    products: int
    chains: int
    fused: int
    """Products in chains of two or more."""
    covered: int
    """Products in any chain."""
    outside: Mapping[str, int]
    views: Mapping[str, int]


def exported(module: nn.Module, inputs: Mapping[str, Tensor]) -> bytes:
    """The module as ONNX. Raises what torch raises where it cannot export it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constants that tracing makes, and of the exporter
        path = Path(folder) / "model.onnx"
        with _spelled(module):
            torch.onnx.export(
                module, tuple(inputs.values()), str(path), dynamo=False, opset_version=OPSET,
                input_names=list(inputs),
            )  # fmt: skip
        return path.read_bytes()


@contextmanager
def _spelled(module: nn.Module) -> Iterator[None]:
    """Meanwhile a model of transformers has its attention written as products and a softmax."""
    if not isinstance(module, FirstState):
        yield
        return
    module.spelled("eager")
    try:
        yield
    finally:
        module.spelled("sdpa")


def lifted(model: bytes, device: Device) -> LiftedModel:
    """What is cut out of an ONNX model for a device, and what is left."""
    module = load(model, {}).module
    parted = partition(module, device.throughput("float32"), device.bandwidth)
    flow = dataflow(module["main"])
    left = _left(flow, parted.matches)
    together = Counter(p.chain for p in parted.products if p.chain is not None)
    return LiftedModel(
        len(parted.products),
        len(parted.matches),
        sum(n for n in together.values() if n > 1),
        sum(together.values()),
        dict(Counter(_named(flow, v) for v in left if flow.kinds[v] != "view")),
        dict(Counter(_named(flow, v) for v in left if flow.kinds[v] == "view")),
    )


def _left(flow: Dataflow, matches: Sequence[ChainMatch]) -> list[relax.Var]:
    """The values that must be computed although no chain computes them, in order."""
    within = {v: match for match in matches for v in match.bindings}
    wanted, frontier = set[relax.Var](), [*flow.outputs]
    while frontier:
        v = frontier.pop()
        if v in wanted or v not in flow.values:
            continue
        wanted.add(v)
        match = within.get(v)
        read = match.arguments.values() if match is not None else sources(flow.values[v])
        frontier += [x for x in read if isinstance(x, relax.Var)]
    return [v for v in flow.order if v in wanted and v not in within]


def _named(flow: Dataflow, v: relax.Var) -> str:
    fixed = extents(v)
    if fixed is None:
        return flow.operator(v)
    return f"{flow.operator(v)} {dtype(v)}{list(fixed)}"
