"""From TensorIR text to machine code for the CPU at hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import tvm

from mcfuser.codegen.script import prim_func
from mcfuser.codegen.tensorir import Panels
from mcfuser.lowering.tensorir.winograd import TAPS, TRANSFORMS

MATRIX_FEATURES = ("amx-tile", "amx-bf16")
DOT_FEATURES = {512: "avx512vnni", 256: "avxvnni"}
"""What LLVM must be told of a CPU with Intel's AMX, and, by the bits of its vectors, of one that
multiplies bytes: the name that it has for the CPU may be that of an older one."""

DONE_BY_LLVM = (
    "s_tir.StmtSimplify", "s_tir.InjectPermutedLayout", "s_tir.InjectVirtualThread",
    "s_tir.HoistIfThenElse", "s_tir.RenormalizeSplitPattern", "tirx.RemoveNoOp",
    "tirx.CommonSubexprElim",
)  # fmt: skip
"""TVM's passes that cost most of a compilation's time and gain a kernel nothing: LLVM does as much,
or they find nothing to do. Without and with them it makes 62,040 and 62,030 lines of assembly of 22
kernels, in 2.0 and 3.3 seconds (a Xeon with AVX-512, 2026-11-27)."""


@lru_cache(maxsize=1)
def host_target() -> Any:
    """LLVM for this processor. The pool that runs parallel loops has its size from the runtime."""
    name = str(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUName")())
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    known = (*MATRIX_FEATURES, *DOT_FEATURES.values())
    more = [f"+{f}" for f in known if bool(features.get(f, False))]
    return tvm.target.Target({"kind": "llvm", "mcpu": name, **({"mattr": more} if more else {})})


def kernel_passes(checked: bool = True) -> Any:
    """The context in which kernels are compiled: without the passes that LLVM does anyway, and with
    memory of its own for every tile. TVM lets one tile take the place of another that a statement
    reads last, even where a loop around the statement reads it again in its next iteration.

    A `checked` kernel refuses arguments of other shapes, types or alignment than it was compiled
    for, in some 700 lines of LLVM's code.
    """
    config = {"tirx.disable_storage_rewrite": True, "tirx.disable_assert": not checked}
    return tvm.transform.PassContext(config=config, disabled_pass=DONE_BY_LLVM)


def compile_function(text: str, name: str) -> Callable[..., None]:
    """A callable on tvm tensors, which does not check them; raises what TVM raises where it cannot
    be compiled."""
    function = prim_func(text).with_attr("global_symbol", name)
    with kernel_passes(checked=False):
        built = tvm.compile(tvm.IRModule({name: function}), target=host_target())
    call: Callable[..., None] = built[name]
    return call


def pack(array: Any, panels: Panels) -> Any:
    """A constant as a micro-kernel reads it, flat: [lead, columns/width, depth, width], with a
    matrix for each number that Winograd's algorithm makes of a window, or with neighbours along
    the depth side by side."""
    shape, lead = array.shape, panels.lead(array.ndim)
    matrices = array.transpose(*lead, *panels.window, *panels.depth, panels.columns)
    if panels.out:
        matrices = matrices.reshape(-1, TAPS, TAPS, panels.rows(shape), shape[panels.columns])
        g = np.asarray(TRANSFORMS[panels.out].weights)
        matrices = np.einsum("as,nstkc,bt->nabkc", g, matrices.astype(np.float64), g)
        matrices = matrices.astype(array.dtype)
    count = math.prod(shape[d] for d in lead)
    matrices = matrices.reshape(count, -1, shape[panels.columns])
    more = panels.panel(shape) // panels.width - matrices.shape[1]
    whole = np.pad(matrices, ((0, 0), (0, more), (0, -matrices.shape[2] % panels.width)))
    split = whole.reshape(*whole.shape[:2], -1, panels.width).transpose(0, 2, 1, 3)
    if panels.dot > 1:
        split = split.reshape(*split.shape[:2], -1, panels.dot, panels.width).swapaxes(-1, -2)
    return np.ascontiguousarray(split).reshape(-1)
