"""Cumulative sums on a GPU: a thread adds up a line of neighbours' lines, or a warp a row.

TVM scans along any axis but the last by some twenty kernels, of which each thread walks through
memory on its own: 3,830 us for 8 x 512 x 64 x 64 elements along the second axis (H200, 2026-11-29).
"""

from __future__ import annotations

import math

from tvm import relax

from mcfuser.codegen.cuda.kernel import GivenArray, KernelStep, SourceOperator
from mcfuser.codegen.cuda.scalar import arithmetic
from mcfuser.codegen.shapes import counted

TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
"""Types of elements that are added up, narrow floats in float32."""
WARP = 32
THREADS = 256
"""Threads of a block whose lines each have one."""
SEGMENTS = 32
"""Into how many parts lines are divided that are too few for the device."""
MANY = 1 << 15
"""Lines that keep a device busy with one thread for each."""
LONGEST_ROW = 1 << 12
"""Elements of a row that one warp adds up; TVM divides a longer one among many blocks."""


def cumulated(call: relax.Call) -> SourceOperator | None:
    """The kernel of a call of cumsum on fixed extents in its own type; None for any other call."""
    (x,), extents, dtype = call.args, counted(call.ty.shape), str(call.ty.dtype)
    if extents is None or dtype not in TYPES or str(x.ty.dtype) != dtype:
        return None
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(extents)
    if math.prod(extents[axis + 1 :]) == 1 and extents[axis] > LONGEST_ROW:
        return None
    return operator(extents, axis, dtype, bool(call.attrs.exclusive))


def operator(extents: tuple[int, ...], axis: int, dtype: str, exclusive: bool) -> SourceOperator:
    """The kernel that adds up an array along an axis; without each element itself if the sum is
    `exclusive`."""
    arrays = (GivenArray("x", extents, dtype), GivenArray("out", extents, dtype))
    outer, n, inner = math.prod(extents[:axis]), extents[axis], math.prod(extents[axis + 1 :])
    if inner == 1:
        step = _rows(outer, n, dtype, exclusive)
    else:
        step = _lines(outer, n, inner, dtype, exclusive)
    return SourceOperator("cumulate", arrays, 1, "", (step,))


def _lines(outer: int, n: int, inner: int, dtype: str, exclusive: bool) -> KernelStep:
    """Neighbouring threads have neighbouring lines. Where lines are few, each has several threads,
    which first add up their parts."""
    lines = outer * inner
    segments = 1 if lines >= MANY else min(SEGMENTS, n)
    width = THREADS if segments == 1 else WARP
    part = -(-n // segments)
    kind, wide, narrow = arithmetic(dtype)
    add = f"run = run + {wide.format(f'x[first + i * {inner}]')};"
    put = f"out[first + i * {inner}] = {narrow.format('run')};"
    body = f"""
const int line = blockIdx.x * {width} + threadIdx.x % {width}, segment = threadIdx.x / {width};
const bool there = line < {lines};
const int first = line / {inner} * {n * inner} + line % {inner};
const int begun = segment * {part}, end = there ? min(begun + {part}, {n}) : 0;
{kind} run = 0;
"""
    if segments > 1:
        body += f"""
__shared__ {kind} sums[{segments}][{width}];
#pragma unroll 8
for (int i = begun; i < end; ++i) {add}
sums[segment][threadIdx.x % {width}] = run;
__syncthreads();
run = 0;
for (int s = 0; s < segment; ++s) run = run + sums[s][threadIdx.x % {width}];
"""
    each = f"{put} {add}" if exclusive else f"{add} {put}"
    body += f"#pragma unroll 8\nfor (int i = begun; i < end; ++i) {{ {each} }}"
    return KernelStep("lines", body, segments * width, -(-lines // width))


def _rows(rows: int, n: int, dtype: str, exclusive: bool) -> KernelStep:
    """A warp adds up its row, 32 elements at a time."""
    kind, wide, narrow = arithmetic(dtype)
    result = f"carried + {'before' if exclusive else 'sum'}"
    before = f"""\
  const {kind} other = __shfl_up_sync(0xffffffff, sum, 1), before = lane ? other : ({kind})0;
"""
    body = f"""
const int row = blockIdx.x * {THREADS // WARP} + threadIdx.x / {WARP};
const int lane = threadIdx.x % {WARP};
if (row >= {rows}) return;
{kind} carried = 0;
for (int begun = 0; begun < {n}; begun += {WARP}) {{
  const int at = row * {n} + begun + lane;
  const bool there = begun + lane < {n};
  const {kind} own = there ? {wide.format("x[at]")} : ({kind})0;
  {kind} sum = own;
  #pragma unroll
  for (int step = 1; step < {WARP}; step *= 2) {{
    const {kind} other = __shfl_up_sync(0xffffffff, sum, step);
    if (lane >= step) sum = sum + other;
  }}
{before if exclusive else ""}  if (there) out[at] = {narrow.format(result)};
  carried = carried + __shfl_sync(0xffffffff, sum, {WARP - 1});
}}
"""
    return KernelStep("rows", body, THREADS, -(-rows * WARP // THREADS))
