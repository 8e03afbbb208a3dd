"""Intel's AMX, the matrix unit of a CPU: whether there is one, and its rate as it is measured."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AMX = "amx"
FEATURES = ("amx-tile", "amx-bf16")
"""What LLVM calls what a kernel needs of it."""
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # x86-64's call, ARCH_REQ_XCOMP_PERM
_STEPS = 20000
_FLOPS = 4 * 2 * 16 * 16 * 32
"""Of a step: four products of tiles, 16 by 16 by 32."""
_CALL = 'T.evaluate(T.call_llvm_intrin("void", "llvm.x86.'
_TEXT = f"""
@T.prim_func(s_tir=True)
def rate(A: T.Buffer((2048,), "uint16"), shapes: T.Buffer((64,), "uint8")):
    T.func_attr({{"global_symbol": "rate", "tirx.is_scheduled": True}})
    {_CALL}ldtilecfg", T.address_of(shapes[0])))
    for i in range({_STEPS}):
LINES
    {_CALL}tilerelease"))
"""


def matrix_unit() -> str:
    """The name of this CPU's unit, if it has one and Linux lets this process use it; else
    nothing."""
    known = {f.replace("-", "_") for f in FEATURES} <= processor_flags()
    return AMX if known and _permitted() else ""


def processor_flags() -> set[str]:
    """What the system says that the processor can do."""
    info = Path("/proc/cpuinfo")
    return set(info.read_text().split()) if info.exists() else set()


def _permitted() -> bool:
    """Asks Linux for the tile registers, for this process and its threads."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def matrix_rate(cores: int, at_once: Callable[[int, Callable[[int], object]], float]) -> float:
    """Flops per second of products of bfloat16 tiles that come from the first cache, on all cores
    together. `at_once` gives the seconds in which so many threads do some work."""
    import numpy as np

    shapes = np.zeros(64, np.uint8)
    shapes[0], shapes[16:32:2], shapes[48:56] = 1, 64, 16
    run, (tiles, shape) = _compiled(), _tensors(np.zeros(2048, np.uint16), shapes)
    seconds = at_once(cores, lambda i: run(tiles, shape))
    return cores * _STEPS * _FLOPS / seconds


def _compiled() -> Any:
    """The work of `_STEPS`, compiled. It is parsed in a thread of its own, for TVM reads the source
    of every frame on the stack."""
    import tvm

    loads = [
        f'tileloadd64", T.int8({4 + n}), T.address_of(A[{512 * n}]), T.int64(64)' for n in range(4)
    ]
    products = [
        f'tdpbf16ps", T.int8({2 * i + j}), T.int8({4 + i}), T.int8({6 + j})'
        for i in range(2) for j in range(2)
    ]  # fmt: skip
    lines = "\n".join(f"        {_CALL}{x}))" for x in (*loads, *products))
    with ThreadPoolExecutor(1, "parser") as parser:
        function = parser.submit(tvm.script.from_source, _TEXT.replace("LINES", lines)).result()
    name = str(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUName")())
    target = {"kind": "llvm", "mcpu": name, "mattr": [f"+{f}" for f in FEATURES]}
    return tvm.compile(tvm.IRModule({"rate": function}), target=tvm.target.Target(target))["rate"]


def _tensors(*arrays: Any) -> list[Any]:
    import tvm

    return [tvm.runtime.tensor(a) for a in arrays]
