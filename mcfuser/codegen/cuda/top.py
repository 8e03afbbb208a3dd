"""The few largest or smallest elements of short rows on a GPU: a warp keeps a row in its registers,
and takes the best element that is left until it has all, or counts for each how many are better.

TVM sorts every row whole, in memory: 1,670 us for the 20 nearest of 1,024 points, for each of 8,192
(H200, 2026-11-29).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from tvm import relax

from mcfuser.codegen.cuda.kernel import GivenArray, KernelStep, SourceOperator
from mcfuser.codegen.cuda.scalar import NUMBER, arithmetic
from mcfuser.codegen.shapes import counted

WARP, THREADS = 32, 256
LONGEST = 1024
"""Elements of a row that a warp has registers for."""
ORDERED: Mapping[str, str] = MappingProxyType({
    "float32": "ordered({})", "float16": "ordered({})", "bfloat16": "ordered({})",
    "int32": "(unsigned){} ^ 0x80000000u", "int16": "(unsigned)({} + 32768)",
    "int8": "(unsigned)({} + 128)", "uint8": "(unsigned){}", "uint16": "(unsigned){}",
    "uint32": "{}", "bool": "(unsigned){}",
})  # fmt: skip
"""Elements as unsigned numbers of the same order."""
FUNCTIONS = """
// A float's bits in the order of numbers: zeros are equal, and what is none is above all.
__device__ __forceinline__ unsigned ordered(float x) {
  if (x != x) return 0xffffffffu;
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
"""
_CHOOSING, _COUNTING = 25, 3
"""Instructions that a warp spends on a choice beside comparing its elements, and on passing on an
element."""


def best(call: relax.Call) -> SourceOperator | None:
    """The kernel of a call of topk along the last dimension of fixed extents that gives both
    elements and their positions; None for any other call."""
    (x,), attrs, extents = call.args, call.attrs, counted(call.args[0].ty.shape)
    dtype, index, k = str(x.ty.dtype), str(attrs.dtype), int(attrs.k)
    if extents is None or dtype not in ORDERED:
        return None
    if index not in ("int32", "int64") or str(attrs.ret_type) != "both":
        return None
    n = extents[-1]
    if int(attrs.axis) % len(extents) != len(extents) - 1 or not 1 <= k <= n <= LONGEST:
        return None
    return operator(extents, k, bool(attrs.largest), dtype, index)


def operator(
    extents: tuple[int, ...], k: int, largest: bool, dtype: str, index: str
) -> SourceOperator:
    """The kernel that writes the `k` best elements of every row, the best first, and their
    positions; of equal ones the first."""
    rows, n, made = math.prod(extents[:-1]), extents[-1], (*extents[:-1], k)
    arrays = (
        GivenArray("x", extents, dtype), GivenArray("best", made, dtype),
        GivenArray("place", made, index),
    )  # fmt: skip
    own = -(-n // WARP)
    _, wide, _ = arithmetic(dtype)
    value = ORDERED[dtype].format(wide.format("x[first + at]"))
    counting = WARP * own * (_COUNTING + 3 * own)
    body = f"""
const int row = blockIdx.x * {THREADS // WARP} + threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};
if (row >= {rows}) return;
const int first = row * {n};
unsigned long long key[{own}];
#pragma unroll
for (int c = 0; c < {own}; ++c) {{
  const unsigned at = c * {WARP} + lane;
  key[c] = 0;
  if (at < {n}) {{
    const unsigned value = {value};
    key[c] = (unsigned long long)({"" if largest else "~"}value) << 32 | (0xffffffffu - at);
  }}
}}
"""
    counted_out = counting < k * (3 * own + _CHOOSING)
    body += _counted(n, k, own, index) if counted_out else _chosen(k, own, index)
    step = KernelStep("rows", body, THREADS, -(-rows * WARP // THREADS))
    return SourceOperator("top", arrays, 2, FUNCTIONS, (step,))


def _chosen(k: int, own: int, index: str) -> str:
    """The best of all is taken `k` times."""
    return f"""\
for (int r = 0; r < {k}; ++r) {{
  unsigned long long most = key[0];
  #pragma unroll
  for (int c = 1; c < {own}; ++c) most = max(most, key[c]);
  #pragma unroll
  for (int step = {WARP // 2}; step; step /= 2)
    most = max(most, __shfl_xor_sync(0xffffffff, most, step));
  #pragma unroll
  for (int c = 0; c < {own}; ++c) if (key[c] == most) key[c] = 0;
  if (lane == 0) {{
    const unsigned at = 0xffffffffu - (unsigned)most;
    best[row * {k} + r] = x[first + at];
    place[row * {k} + r] = ({NUMBER[index]})at;
  }}
}}
"""


def _counted(n: int, k: int, own: int, index: str) -> str:
    """Every element is put behind those that are better."""
    return f"""\
int better[{own}] = {{}};
#pragma unroll
for (int c = 0; c < {own}; ++c)
  for (int other = 0; other < {WARP}; ++other) {{
    const unsigned long long one = __shfl_sync(0xffffffff, key[c], other);
    #pragma unroll
    for (int own = 0; own < {own}; ++own) better[own] += one > key[own];
  }}
#pragma unroll
for (int c = 0; c < {own}; ++c) {{
  const int at = c * {WARP} + lane;
  if (at < {n} && better[c] < {k}) {{
    best[row * {k} + better[c]] = x[first + at];
    place[row * {k} + better[c]] = ({NUMBER[index]})at;
  }}
}}
"""
