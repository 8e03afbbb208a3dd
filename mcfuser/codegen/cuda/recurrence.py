"""Recurrences on a GPU: one kernel walks over a whole sequence.

A cluster of blocks keeps a step's matrices (mcfuser.codegen.cuda.cluster), and NVIDIA's compiler
makes the kernel of CUDA C (mcfuser.codegen.cuda.recurrence_source) while the module is built. On an
H200, 100 steps of an LSTM of 128 units, one row of float16, take 64 us, and cuDNN's 220
(2026-11-28).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import tvm
from tvm import relax

from mcfuser.chain.recurrence import Recurrence
from mcfuser.codegen.call import called
from mcfuser.codegen.cuda.cluster import THREADS, ClusterWalk, clustered, packed
from mcfuser.codegen.cuda.kernel import (
    GivenArray,
    SourceKernel,
    SourceLaunch,
    kernel_name,
    launch_text,
)
from mcfuser.codegen.cuda.recurrence_source import parameters, source
from mcfuser.codegen.recurrences import with_loops
from mcfuser.codegen.shapes import fixed
from mcfuser.device import Device


def with_kernels(
    module: tvm.IRModule, device: Device
) -> tuple[tvm.IRModule, tuple[SourceKernel, ...]]:
    """The module with launches of kernels for its recurrences, and these."""
    kernels: list[SourceKernel] = []

    def loop(builder: relax.BlockBuilder, call: relax.Call, found: Recurrence) -> relax.Expr:
        walk = walked(call, found, device)
        kernel = recurrence_kernel(walk)
        kernels.append(kernel)
        given, square, *others = call.args[1].fields
        pieces = packed(square.value.numpy(), walk)
        matrices = relax.const(pieces.reshape(len(pieces), -1).view(np.int32))
        text = launched(walk, kernel)
        arguments = [given, matrices, *others]
        return called(builder, text, "recurrence", arguments, [*call.ty.fields])

    return with_loops(module, loop), tuple(dict.fromkeys(kernels))


def walked(call: relax.Call, found: Recurrence, device: Device) -> ClusterWalk:
    """How what a call of a recurrence stands for is computed."""
    shown = call.ty.fields[0]
    extents = fixed(shown.shape)
    assert extents is not None
    steps, _, batch, hidden = extents
    multiplied = str(call.args[1].fields[1].ty.dtype)
    return clustered(found, steps, batch, hidden, str(shown.dtype), multiplied, device)


def recurrence_kernel(walk: ClusterWalk) -> SourceKernel:
    """The kernel of a walk."""
    name = kernel_name("recurrence", partial(source, walk))
    types = ("handle",) * len(parameters(walk))
    return SourceKernel(((name, types),), source(walk, name), walk.shared)


def launched(walk: ClusterWalk, kernel: SourceKernel) -> str:
    """The text of a PrimFunc that launches a walk's kernel."""
    types = {"square": "int32", "lengths": "int32"}
    arrays = [GivenArray(n, s, types.get(n, walk.dtype)) for n, s in _shapes(walk).items()]
    grid = walk.blocks, walk.clusters, walk.recurrence.directions
    written = len(walk.recurrence.states) + 1
    return launch_text(kernel, arrays, written, [SourceLaunch(kernel.name, THREADS, grid)])


def _shapes(walk: ClusterWalk) -> Mapping[str, tuple[int, ...]]:
    """The shapes of what the kernel takes; pieces are 32 bits at a time."""
    cell = walk.recurrence
    form = cell.directions, walk.batch, walk.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "given": (walk.steps * walk.batch, cell.directions * len(cell.given) * walk.hidden),
        "square": (cell.directions, walk.blocks * walk.pieces * THREADS * 4),
        "fixed": (cell.directions, len(cell.constants), walk.hidden),
        "lengths": (walk.batch,),
        "out": (walk.steps, *form),
    }
    return {name: shapes.get(name, form) for name in parameters(walk)}
