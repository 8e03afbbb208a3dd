"""A tuned kernel as a function of a TVM module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain
from mcfuser.codegen import cubin, cuda_module, triton
from mcfuser.codegen.cpu import pack, parse_function
from mcfuser.codegen.tensorir import Lowering, Panels, generate
from mcfuser.device import Device
from mcfuser.tuned import Tuned, kernel_name, realise


@dataclass(frozen=True)
class Function:
    """A PrimFunc that takes a chain's inputs, counters, and the chain's outputs, and what it needs
    beside it: inputs in panels, arrays of zeros to count in, a cubin."""

    name: str
    primfunc: Any
    packed: tuple[tuple[int, Panels], ...] = ()
    binary: cuda_module.Kernel | None = None
    counters: tuple[NDArray[np.generic], ...] = ()


def function(
    tuned: Tuned, chain: Chain, device: Device, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> Function:
    """The kernel for parameters of these physical shapes, under this name."""
    if device.kind == "cuda":
        return _launcher(tuned, chain, name, shapes)
    source = generate(realise(tuned, chain), name, Lowering(**tuned.lowering), shapes)
    order = chain.inputs
    packed = tuple((order.index(n), panels) for n, panels in source.packed)
    return Function(name, parse_function(source.text), packed)


def _launcher(
    tuned: Tuned, chain: Chain, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> Function:
    lowering = triton.Lowering(**tuned.lowering)
    source = triton.generate(realise(tuned, chain), kernel_name(tuned.key), lowering)
    binary = cubin.Binary(
        tuned.binary, source.name, tuned.resources["shared"], tuned.resources["registers"],
        tuned.resources["spills"], source.threads,
    )  # fmt: skip
    primfunc = cuda_module.launcher(source, binary, shapes)
    counters = tuple(np.zeros(w.size, w.dtype) for w in cuda_module.counters(source))
    return Function(name, primfunc, binary=cuda_module.kernel(source, binary), counters=counters)


def packed(made: Function, chain: Chain, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that the kernel wants in panels, packed."""
    names = {chain.inputs[i]: panels for i, panels in made.packed}
    return {n: pack(constants[n], panels) for n, panels in names.items()}
