"""Non-maximum suppression on a GPU, a block for each class of a picture.

Its threads sort the scores in shared memory, and take the next 64 boxes that are left: which of
these suppress which is found for all pairs at once, one thread chooses among them, and all threads
suppress what overlaps with the chosen ones. Where the scores do not fit there, the best one that is
left is chosen, and as the threads suppress what overlaps with it, they find the next best.
"""

from __future__ import annotations

import tvm
from tvm import relax

from mcfuser.chain.suppression import Suppression
from mcfuser.codegen.call import called
from mcfuser.codegen.cuda.kernel import GivenArray, KernelStep, SourceKernel, SourceOperator
from mcfuser.codegen.cuda.top import FUNCTIONS as ORDER
from mcfuser.codegen.shapes import fixed
from mcfuser.codegen.suppressions import with_suppressions
from mcfuser.device import Device

WARP, MOST_THREADS, _BITS = 32, 1024, 64
CHUNK = 64
"""Boxes that are chosen from at once."""
_OWN = 8 << 10
"""Bytes of shared memory beside the scores, at most."""
_LEAST = "-3.40282347e38f"
"""The least score that may be chosen: neither minus infinity nor what is no number."""
FUNCTIONS = (
    ORDER
    + """
struct Box { float low_y, low_x, high_y, high_x, area; };
// The part of two boxes' union that they have in common is more than this.
__device__ __forceinline__ bool overlap(const Box& a, const Box& b, float part) {
  const float low_y = max(a.low_y, b.low_y), high_y = min(a.high_y, b.high_y);
  const float low_x = max(a.low_x, b.low_x), high_x = min(a.high_x, b.high_x);
  if (!(high_y > low_y && high_x > low_x && a.area > 0 && b.area > 0)) return false;
  const float common = (high_y - low_y) * (high_x - low_x);
  const float both = a.area + b.area - common;
  return both > 0 && common / both > part;
}
"""
)
_CORNERS = """
__device__ __forceinline__ Box box_at(const float* p) {
  Box b = {min(p[0], p[2]), min(p[1], p[3]), max(p[0], p[2]), max(p[1], p[3]), 0};
  b.area = (b.high_y - b.low_y) * (b.high_x - b.low_x);
  return b;
}
"""
_CENTRE = """
__device__ __forceinline__ Box box_at(const float* p) {
  const float y = p[3] / 2, x = p[2] / 2;
  Box b = {p[1] - y, p[0] - x, p[1] + y, p[0] + x, 0};
  b.area = (b.high_y - b.low_y) * (b.high_x - b.low_x);
  return b;
}
"""


def with_suppression_kernels(
    module: tvm.IRModule, device: Device
) -> tuple[tvm.IRModule, tuple[SourceKernel, ...]]:
    """The module with launches of kernels for its suppressions, and these."""
    kernels: list[SourceKernel] = []

    def suppress(builder: relax.BlockBuilder, call: relax.Call, what: Suppression) -> relax.Expr:
        boxes, scores = call.args[1].fields
        extents = fixed(scores.ty.shape)
        assert extents is not None
        pictures, classes, n = extents
        kernel, text = suppression(what, pictures, classes, n, int(device.fast)).kernel()
        kernels.append(kernel)
        return called(builder, text, "suppression", [boxes, scores], call.ty)

    return with_suppressions(module, suppress), tuple(dict.fromkeys(kernels))


def suppression(
    what: Suppression, pictures: int, classes: int, n: int, fast: int
) -> SourceOperator:
    """The kernel that chooses boxes among `n` of each picture, on a device whose blocks share
    `fast` bytes; its rows are those of chain.suppression."""
    units, most = pictures * classes, what.most
    arrays = (
        GivenArray("box", (pictures, n, 4), "float32"),
        GivenArray("score", (pictures, classes, n), "float32"),
        GivenArray("row", (units * most, 3), "int64"),
    )
    room = max(CHUNK, 1 << (n - 1).bit_length())
    in_order = room * 8 + _OWN <= fast
    threads = min(MOST_THREADS, room)
    choose = _in_order(what, classes, n, room) if in_order else _choose(what, classes, n, threads)
    steps = [KernelStep("choose", choose, threads, units)]
    if units > 1:
        steps.append(KernelStep("close", _close(units, most), MOST_THREADS, 1))
    functions = FUNCTIONS + (_CENTRE if what.centered else _CORNERS)
    shared = room * 8 if in_order else 0
    return SourceOperator("suppress", arrays, 1, functions, tuple(steps), shared)


def _own(what: Suppression, classes: int, n: int) -> str:
    """The names of what a block works on."""
    return f"""\
const int unit = blockIdx.x, picture = unit / {classes};
const int lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};
const float* const boxes = box + (long long)picture * {n} * 4;
const float* const scores = score + (long long)unit * {n};
long long* const rows = row + (long long)unit * {what.most} * 3;
"""


def _in_order(what: Suppression, classes: int, n: int, room: int) -> str:
    """The rows of a class of a picture, from where it may have its first one, where its scores are
    sorted in `room` numbers."""
    threads, words = min(MOST_THREADS, room), room // WARP
    above = "true" if what.least is None else f"s > {what.least!r}f"
    return f"""
{_own(what, classes, n)}extern __shared__ unsigned long long keys[];
__shared__ unsigned words[{words}];
__shared__ unsigned long long masks[{CHUNK}];
__shared__ Box near[{CHUNK}];
__shared__ int places[{CHUNK}], kept[{CHUNK}], counts[3];
for (int p = threadIdx.x; p < {room}; p += {threads}) {{
  keys[p] = 0;
  if (p >= {n}) continue;
  const float s = scores[p];
  if (s >= {_LEAST} && {above})
    keys[p] = (unsigned long long)ordered(s) << 32 | (0xffffffffu - (unsigned)p);
}}
for (int size = 2; size <= {room}; size *= 2)
  for (int step = size / 2; step; step /= 2) {{
    __syncthreads();
    for (int i = threadIdx.x; i < {room // 2}; i += {threads}) {{
      const int a = i / step * step * 2 + i % step, b = a + step;
      const unsigned long long x = keys[a], y = keys[b];
      if ((x < y) == ((a & size) == 0)) {{
        keys[a] = y;
        keys[b] = x;
      }}
    }}
  }}
__syncthreads();
for (int p = threadIdx.x; p < {room}; p += {threads}) {{
  const unsigned word = __ballot_sync(0xffffffff, keys[p] != 0);
  if (lane == 0) words[p / {WARP}] = word;
}}
__syncthreads();
int number = 0, first = 0;
while (number < {what.most}) {{
  if (warp == 0) {{  // the next places that are left
    int total = 0, start = first;
    for (; start < {words}; start += {WARP}) {{
      unsigned word = start + lane < {words} ? words[start + lane] : 0;
      const int own = __popc(word);
      int before = own;
      for (int step = 1; step < {WARP}; step *= 2) {{
        const int other = __shfl_up_sync(0xffffffff, before, step);
        if (lane >= step) before += other;
      }}
      total = __shfl_sync(0xffffffff, before, {WARP - 1});
      for (int i = before - own; word && i < {CHUNK}; ++i, word &= word - 1)
        places[i] = (start + lane) * {WARP} + __ffs(word) - 1;
      if (total) break;
    }}
    if (lane == 0) {{
      counts[0] = min(total, {CHUNK});
      counts[1] = start;
    }}
  }}
  __syncthreads();
  const int count = counts[0];
  first = counts[1];
  if (count == 0) break;
  if (threadIdx.x < count)
    near[threadIdx.x] = box_at(boxes + (0xffffffffu - (unsigned)keys[places[threadIdx.x]]) * 4ll);
  __syncthreads();
  for (int e = threadIdx.x; e < {CHUNK * 16}; e += {threads}) {{  // four pairs a thread
    const int i = e / 16, j = e % 16 * {CHUNK // 16};
    unsigned long long bits = 0;
    for (int d = j; d < j + {CHUNK // 16}; ++d)
      if (i < d && d < count && overlap(near[i], near[d], {what.overlap!r}f)) bits |= 1ull << d;
    for (int step = 8; step; step /= 2) bits |= __shfl_xor_sync(0xffffffff, bits, step);
    if (e % 16 == 0) masks[i] = bits;
  }}
  __syncthreads();
  if (threadIdx.x == 0) {{
    unsigned long long gone = 0;
    int chosen = 0;
    for (int i = 0; i < count && number + chosen < {what.most}; ++i)
      if (!(gone >> i & 1)) {{
        kept[chosen++] = i;
        gone |= masks[i];
      }}
    counts[2] = chosen;
  }}
  __syncthreads();
  const int chosen = counts[2], last = places[count - 1];
  if (threadIdx.x < chosen) {{
    long long* const one = rows + (number + threadIdx.x) * 3;
    one[0] = picture;
    one[1] = unit % {classes};
    one[2] = 0xffffffffu - (unsigned)keys[places[kept[threadIdx.x]]];
  }}
  for (int p = first * {WARP} / {threads} * {threads} + threadIdx.x; p < {room}; p += {threads}) {{
    bool left = p > last && words[p / {WARP}] >> p % {WARP} & 1;
    if (left) {{
      const Box b = box_at(boxes + (0xffffffffu - (unsigned)keys[p]) * 4ll);
      for (int c = 0; c < chosen && left; ++c)
        left = !overlap(near[kept[c]], b, {what.overlap!r}f);
    }}
    const unsigned word = __ballot_sync(0xffffffff, left);
    if (lane == 0) words[p / {WARP}] = word;
  }}
  number += chosen;
  __syncthreads();
}}
for (int i = number * 3 + threadIdx.x; i < {what.most * 3}; i += {threads}) rows[i] = -1;
"""


def _choose(what: Suppression, classes: int, n: int, threads: int) -> str:
    """The rows of a class of a picture, from where it may have its first one."""
    words = -(-n // (threads * _BITS))
    above = "true" if what.least is None else f"s > {what.least!r}f"
    return f"""
{_own(what, classes, n)}__shared__ unsigned long long found[2][{WARP}];
unsigned long long left[{words}] = {{}}, best = 0;
for (int k = 0, i = threadIdx.x; i < {n}; ++k, i += {threads}) {{
  const float s = scores[i];
  if (s >= {_LEAST} && {above}) {{
    left[k / {_BITS}] |= 1ull << k % {_BITS};
    best = max(best, (unsigned long long)ordered(s) << 32 | (0xffffffffu - (unsigned)i));
  }}
}}
int number = 0;
for (; number < {what.most}; ++number) {{
  #pragma unroll
  for (int step = {WARP // 2}; step; step /= 2)
    best = max(best, __shfl_xor_sync(0xffffffff, best, step));
  if (lane == 0) found[number % 2][warp] = best;
  __syncthreads();
  best = lane < {threads // WARP} ? found[number % 2][lane] : 0;
  #pragma unroll
  for (int step = {WARP // 2}; step; step /= 2)
    best = max(best, __shfl_xor_sync(0xffffffff, best, step));
  if (best == 0) break;
  const int at = 0xffffffffu - (unsigned)best;
  const Box chosen = box_at(boxes + at * 4);
  if (threadIdx.x == 0) {{
    rows[number * 3] = picture;
    rows[number * 3 + 1] = unit % {classes};
    rows[number * 3 + 2] = at;
  }}
  best = 0;
  for (int k = 0, i = threadIdx.x; i < {n}; ++k, i += {threads}) {{
    const unsigned long long bit = 1ull << k % {_BITS};
    if (!(left[k / {_BITS}] & bit)) continue;
    if (i == at || overlap(chosen, box_at(boxes + i * 4), {what.overlap!r}f))
      left[k / {_BITS}] &= ~bit;
    else
      best = max(best, (unsigned long long)ordered(scores[i]) << 32 | (0xffffffffu - (unsigned)i));
  }}
}}
for (int i = number * 3 + threadIdx.x; i < {what.most * 3}; i += {threads}) rows[i] = -1;
"""


def _close(units: int, most: int) -> str:
    """Moves the rows of each class up to those of the one before."""
    return f"""
const int lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};
__shared__ int counts[2][{WARP}];
int total = 0;
for (int unit = 0; unit < {units}; ++unit) {{
  int count = 0;
  for (int i = threadIdx.x; i < {most}; i += {MOST_THREADS})
    count += row[((long long)unit * {most} + i) * 3] >= 0;
  #pragma unroll
  for (int step = {WARP // 2}; step; step /= 2) count += __shfl_xor_sync(0xffffffff, count, step);
  if (lane == 0) counts[unit % 2][warp] = count;
  __syncthreads();
  count = counts[unit % 2][lane];
  #pragma unroll
  for (int step = {WARP // 2}; step; step /= 2) count += __shfl_xor_sync(0xffffffff, count, step);
  const long long from = (long long)unit * {most} * 3, to = (long long)total * 3;
  for (int first = 0; from != to && first < count * 3; first += {MOST_THREADS}) {{
    const int i = first + threadIdx.x;
    const long long value = i < count * 3 ? row[from + i] : 0;
    __syncthreads();
    if (i < count * 3) row[to + i] = value;
    __syncthreads();
  }}
  total += count;
}}
for (int i = total * 3 + threadIdx.x; i < {units * most * 3}; i += {MOST_THREADS}) row[i] = -1;
"""
