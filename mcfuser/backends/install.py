"""A tuned kernel as a function of a TVM module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfuser.chain import Chain
from mcfuser.codegen import tensorir
from mcfuser.codegen.cuda import module as cuda_module
from mcfuser.codegen.tensorir import Panels
from mcfuser.codegen.tensorir.build import pack, parse_function
from mcfuser.device import Device
from mcfuser.tune.gpu_search import gpu_kernel
from mcfuser.tune.tuned import Tuned, names_of
from mcfuser.tune.tuner import kernel_of


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
    """The kernel for parameters of these physical shapes, under this name: the kept source, or the
    kept binary with its launches. Only a CPU function's parameters are declared anew."""
    if device.kind == "cuda":
        return _launcher(tuned, chain, name, shapes)
    kept = kernel_of(tuned, tuned.chain).source
    tensors, _ = names_of(tuned, chain)
    own = {old: shapes[new] for old, new in tensors.items() if new in shapes}
    source = tensorir.with_shapes(kept, tuned.chain, name, own)
    order = tuned.chain.inputs
    packed = tuple((order.index(n), panels) for n, panels in source.packed)
    return Function(name, parse_function(source.text), packed)


def _launcher(
    tuned: Tuned, chain: Chain, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> Function:
    made = gpu_kernel(tuned, chain)
    primfunc = cuda_module.launcher(made.source, made.binary, shapes)
    counters = tuple(np.zeros(w.size, w.dtype) for w in cuda_module.counters(made.source))
    binary = cuda_module.kernel(made.source, made.binary)
    return Function(name, primfunc, binary=binary, counters=counters)


def packed(made: Function, chain: Chain, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that the kernel wants in panels, packed."""
    names = {chain.inputs[i]: panels for i, panels in made.packed}
    return {n: pack(constants[n], panels) for n, panels in names.items()}
