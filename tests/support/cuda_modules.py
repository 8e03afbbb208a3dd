"""Compiled modules for a GPU, made without one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tvm import relax

from mcfuser.chain import attention
from mcfuser.codegen.cuda import module as cuda_module
from mcfuser.codegen.cuda.cubin import Binary, compile_source
from mcfuser.codegen.triton import TritonSource, generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from tests.support.triton_cases import scheduled

tvm = pytest.importorskip("tvm")

MISSING = [n for n in cuda_module.NEEDED if not cuda_module._installed(n)]

PHYSICAL = {"Q": (1, 2, 64, 32), "K": (2, 64, 32), "V": (2, 64, 32), "O": (2, 64, 32)}


@pytest.fixture(scope="module")
def compiled() -> tuple[TritonSource, Binary]:
    tiles = {"m": 32, "n": 32, "k": 32, "h": 32}
    schedule = scheduled(attention(2, 64, 64, 32, 32, "float16"), "mh.nk", tiles)
    source = generate(schedule, "fused_attention_0")
    return source, compile_source(source, "sm_90")


@pytest.fixture(scope="module", params=["kernel", "last"])
def split(request: pytest.FixtureRequest) -> tuple[TritonSource, Binary]:
    return split_by(request.param)


@cache
def split_by(combine: str) -> tuple[TritonSource, Binary]:
    tiles = {"m": 32, "n": 16, "k": 32, "h": 32}
    schedule = scheduled(attention(2, 64, 64, 32, 32, "float16"), "mh.nk", tiles, "n", 3)
    source = generate(schedule, f"split_{combine}", TritonKnobs(combine=combine))
    return source, compile_source(source, "sm_90")


def module_with(
    source: TritonSource, binary: Binary, *more: tuple[TritonSource, Binary]
) -> tvm.IRModule:
    """add(q, constant), the kernels one after another, gelu: kernels between operators that TVM
    compiles."""
    q, k, v = (
        relax.Var(n.lower(), relax.TensorType(PHYSICAL[n], "float16")) for n in ("Q", "K", "V")
    )
    rng = np.random.default_rng(0)
    shift = rng.standard_normal(PHYSICAL["Q"]).astype(np.float16)
    scale = rng.standard_normal((2, 256, 128)).astype(np.float16)
    builder = relax.BlockBuilder()
    kernels = ((source, binary), *more)
    launchers = [builder.add_func(cuda_module.launcher(s, b, PHYSICAL), b.name) for s, b in kernels]
    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            o = builder.emit(relax.op.add(q, relax.const(shift)))
            kind = relax.TensorType(PHYSICAL["O"], "float16")
            for launcher, (s, _) in zip(launchers, kernels, strict=True):
                zeros = [relax.const(np.zeros(w.size, w.dtype)) for w in cuda_module.counters(s)]
                again = builder.emit(relax.op.reshape(o, PHYSICAL["Q"]))
                o = builder.emit(relax.call_tir(launcher, [again, k, v, *zeros], kind))
            large = builder.emit(relax.op.max(relax.const(scale)))
            out = builder.emit_output(relax.op.multiply(relax.op.nn.gelu(o), large))
        builder.emit_func_output(out)
    return builder.get()
