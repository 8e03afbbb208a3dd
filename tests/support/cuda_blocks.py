"""Kernels of operators on this machine: their blocks one after the other, a thread of the host for
each thread of a block."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mcfuser.codegen.cuda.kernel import SourceOperator
from mcfuser.codegen.cuda.scalar import HEADERS, NUMBER
from tests.support.cuda_language import LANGUAGE

_HOST = (
    """
#include <pthread.h>
#define __shared__ static
template <typename T> T max(T x, T y) { return x < y ? y : x; }
template <typename T> T min(T x, T y) { return y < x ? y : x; }
"""
    + LANGUAGE
    + """
struct Three { int x; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
thread_local Three threadIdx, blockIdx;
struct Warp { pthread_barrier_t barrier; uint64_t sent[32]; };
pthread_barrier_t whole;
Warp warps[32];
void __syncthreads() { pthread_barrier_wait(&whole); }
template <typename T> T exchanged(T value, int from) {
  Warp& w = warps[threadIdx.x / 32];
  memcpy(&w.sent[threadIdx.x % 32], &value, sizeof(T));
  pthread_barrier_wait(&w.barrier);
  T found;
  memcpy(&found, &w.sent[from], sizeof(T));
  pthread_barrier_wait(&w.barrier);
  return found;
}
template <typename T> T __shfl_sync(unsigned, T value, int lane) { return exchanged(value, lane); }
template <typename T> T __shfl_xor_sync(unsigned, T value, int mask) {
  return exchanged(value, (threadIdx.x % 32) ^ mask);
}
template <typename T> T __shfl_up_sync(unsigned, T value, int by) {
  const int lane = threadIdx.x % 32;
  return exchanged(value, lane < by ? lane : lane - by);
}
unsigned __ballot_sync(unsigned, bool holds) {
  Warp& w = warps[threadIdx.x / 32];
  w.sent[threadIdx.x % 32] = holds;
  pthread_barrier_wait(&w.barrier);
  unsigned found = 0;
  for (int lane = 0; lane < 32; ++lane) found |= (unsigned)w.sent[lane] << lane;
  pthread_barrier_wait(&w.barrier);
  return found;
}
int __popc(unsigned x) { return __builtin_popcount(x); }
int __ffs(unsigned x) { return __builtin_ffs(x); }
pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;
template <typename T> void atomicAdd(T* place, T value) {
  pthread_mutex_lock(&memory);
  *place += value;
  pthread_mutex_unlock(&memory);
}
template <typename T> T atomicCAS(T* place, T before, T after) {
  __atomic_compare_exchange_n(place, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return before;
}
"""
)
_RUN = """
struct Given_{step} {{ void** given; int block, thread; }};
void* thread_{step}(void* raw) {{
  auto [given, block, thread] = *(Given_{step}*)raw;
  threadIdx = {{thread}}; blockIdx = {{block}};
  kernel_{step}({arguments});
  return nullptr;
}}
extern "C" void run_{step}(void** given) {{
  static Given_{step} all[{threads}];
  static pthread_t threads[{threads}];
  pthread_barrier_init(&whole, nullptr, {threads});
  for (Warp& w : warps) pthread_barrier_init(&w.barrier, nullptr, 32);
  for (int block = 0; block < {blocks}; ++block) {{
    for (int t = 0; t < {threads}; ++t) {{
      all[t] = {{given, block, t}};
      pthread_create(threads + t, nullptr, thread_{step}, all + t);
    }}
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
  }}
}}
"""


def computed(
    operator: SourceOperator, given: Sequence[np.ndarray], folder: Path
) -> list[np.ndarray]:
    """What the operator writes for these inputs. What it does not write are ones in all bits."""
    text = operator.text("kernel")
    assert text.startswith(HEADERS)
    arguments = ", ".join(f"({NUMBER[a.dtype]}*)given[{i}]" for i, a in enumerate(operator.arrays))
    runs = [
        _RUN.format(step=s.name, threads=s.threads, blocks=s.blocks, arguments=arguments)
        for s in operator.steps
    ]
    path, made = folder / "kernel.cpp", folder / "kernel.so"
    declared = r"extern __shared__ ([\w ]+) (\w+)\[\];"
    text = re.sub(declared, rf"alignas(16) static char \2_bytes[{operator.shared}]; "
                  r"\1* const \2 = (\1*)\2_bytes;", text)  # fmt: skip
    half = "#define HALF\n" if "__half" in text else ""
    path.write_text("".join([half, _HOST, text.removeprefix(HEADERS), *runs]))
    flags = ["-O0", "-std=c++17", "-mf16c", "-pthread", "-shared", "-fPIC", "-fno-strict-aliasing"]
    subprocess.run(["g++", *flags, "-o", str(made), str(path)], check=True)
    library = ctypes.CDLL(str(made))
    arrays = [np.ascontiguousarray(a) for a in given]
    for a in operator.arrays[len(arrays) :]:
        bits = np.full(int(np.prod(a.extents)) * numpy_type(a.dtype).itemsize, 255, np.uint8)
        arrays.append(bits.view(numpy_type(a.dtype)).reshape(a.extents))
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    for step in operator.steps:
        getattr(library, f"run_{step.name}")(pointers)
    return arrays[len(given) :]


def numpy_type(dtype: str) -> np.dtype:
    """The type of elements in numpy."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)
