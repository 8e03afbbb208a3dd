"""CUDA C of recurrences on this machine: a thread of the host for each thread of a cluster.

What no C++ compiler knows is written for the host: the product of a warp's tensor core by the
layout that PTX gives its operands, what blocks send each other, and what waits for it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mcfuser.codegen.cuda.cluster import THREADS, ClusterWalk
from mcfuser.codegen.cuda.recurrence_product import TENSOR_CORE
from mcfuser.codegen.cuda.recurrence_source import CLUSTER, source
from mcfuser.codegen.cuda.scalar import HEADERS
from tests.support.cuda_language import LANGUAGE

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
_HOST = (
    """
#define HALF
#include <pthread.h>
#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>
using std::max; using std::min;
#define __cluster_dims__(...)
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
"""
    + LANGUAGE
    + """
float __int_as_float(int x) { return same_bits<float>(x); }
unsigned short __half_as_ushort(__half x) { return x.bits; }
unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
float __fdividef(float x, float y) { return x / y; }
float __expf(float x) { return expf(x); }

struct Three { int x, y, z; };
struct Counted { int arrivals = 1, bytes = 0; unsigned phase = 0; };
struct Warp {
  pthread_barrier_t barrier;
  uint4 a[32]; unsigned b[32][2], other[32];
};
struct Block {
  alignas(128) unsigned char memory[1 << 16];
  pthread_barrier_t barrier;
  Warp warps[WARPS];
  Counted counted[64];
};
struct Cluster {
  Block blocks[BLOCKS];
  pthread_barrier_t barrier;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
};
thread_local Three threadIdx, blockIdx;
thread_local Cluster* cluster;
Block& own() { return cluster->blocks[blockIdx.x]; }
Warp& warp_of() { return own().warps[threadIdx.x / 32]; }
void __syncthreads() { pthread_barrier_wait(&own().barrier); }
unsigned __cvta_generic_to_shared(const void* p) {
  return (const unsigned char*)p - own().memory;
}
unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) {
  Warp& w = warp_of();
  const int lane = threadIdx.x % 32;
  w.other[lane] = value;
  pthread_barrier_wait(&w.barrier);
  const unsigned found = w.other[lane ^ mask];
  pthread_barrier_wait(&w.barrier);
  return found;
}
"""
)
_CLUSTER_ON_HOST = """
unsigned in_block(unsigned address, unsigned block) { return address | (block + 1) << 24; }
Counted& counted_at(unsigned block, unsigned address) {
  return cluster->blocks[block].counted[address / 8 % 64];
}
void ended(Counted& c) {
  if (c.arrivals || c.bytes) return;
  c.phase += 1;
  c.arrivals = 1;
  pthread_cond_broadcast(&cluster->changed);
}
void prepare(unsigned arrived) { counted_at(blockIdx.x, arrived) = Counted(); }
void expect(unsigned arrived, unsigned bytes) {
  pthread_mutex_lock(&cluster->mutex);
  Counted& c = counted_at(blockIdx.x, arrived);
  c.arrivals -= 1;
  c.bytes += bytes;
  ended(c);
  pthread_mutex_unlock(&cluster->mutex);
}
void send(unsigned address, unsigned bits, unsigned arrived) {
  pthread_mutex_lock(&cluster->mutex);
  const unsigned block = (address >> 24) - 1;
  memcpy(cluster->blocks[block].memory + (address & 0xffffff), &bits, 4);
  Counted& c = counted_at(block, arrived & 0xffffff);
  c.bytes -= 4;
  ended(c);
  pthread_mutex_unlock(&cluster->mutex);
}
void wait(unsigned arrived, unsigned parity) {
  pthread_mutex_lock(&cluster->mutex);
  while (counted_at(blockIdx.x, arrived).phase % 2 == parity)
    pthread_cond_wait(&cluster->changed, &cluster->mutex);
  pthread_mutex_unlock(&cluster->mutex);
}
void all_blocks() { pthread_barrier_wait(&cluster->barrier); }
"""
_PRODUCT_ON_HOST = """
float number(unsigned pair, int which) { return WIDE({(uint16_t)(pair >> 16 * which)}); }
void multiply(float (&sums)[4], uint4 a, unsigned b0, unsigned b1) {
  Warp& w = warp_of();
  const int lane = threadIdx.x % 32;
  w.a[lane] = a; w.b[lane][0] = b0; w.b[lane][1] = b1;
  pthread_barrier_wait(&w.barrier);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint4& from = w.a[row % 8 * 4 + k % 8 / 2];
      const unsigned halves[2][2] = {{from.x, from.y}, {from.z, from.w}};
      const unsigned* vector = w.b[column * 4 + k % 8 / 2];
      sums[i] += number(halves[k / 8][row / 8], k % 2) * number(vector[k / 8], k % 2);
    }
  }
  pthread_barrier_wait(&w.barrier);
}
"""
_RUN = """
extern "C" void run(void** given, int clusters, int directions) {
  for (int y = 0; y < clusters; ++y) for (int z = 0; z < directions; ++z) {
    auto all = new Cluster;
    memset(all->blocks, 0xff, sizeof(all->blocks));
    pthread_barrier_init(&all->barrier, nullptr, BLOCKS * WARPS * 32);
    for (Block& block : all->blocks) {
      pthread_barrier_init(&block.barrier, nullptr, WARPS * 32);
      for (Warp& w : block.warps) pthread_barrier_init(&w.barrier, nullptr, 32);
    }
    std::vector<std::thread> threads;
    for (int x = 0; x < BLOCKS; ++x) for (int t = 0; t < WARPS * 32; ++t)
      threads.emplace_back([=] {
        threadIdx = {t, 0, 0}; blockIdx = {x, y, z}; cluster = all;
        ((void (*)(ARGUMENTS))kernel)(GIVEN);
      });
    for (auto& thread : threads) thread.join();
    delete all;
  }
}
"""
_SHARED = "extern __shared__ __align__(128) unsigned char shared[];"
_WIDE = {"float16": "__half2float", "bfloat16": "__bfloat162float", "float32": ""}
_TYPES = {"float16": "f16", "bfloat16": "bf16"}


def on_host(walk: ClusterWalk, folder: Path) -> ctypes.CDLL:
    """The kernel of a walk, compiled for this machine."""
    assert walk.shared <= 1 << 16
    text = source(walk, "kernel").replace(HEADERS, _HOST)
    text = text.replace(_SHARED, "unsigned char* shared = own().memory;")
    text = text.replace(CLUSTER, _CLUSTER_ON_HOST)
    product = TENSOR_CORE.format(type=_TYPES.get(walk.multiplied, ""))
    text = text.replace(product, _PRODUCT_ON_HOST) + _RUN
    count = 5 + 2 * len(walk.recurrence.states)
    names = {
        "WARPS": THREADS // 32, "BLOCKS": walk.blocks, "WIDE": _WIDE[walk.multiplied],
        "ARGUMENTS": ",".join(["void*"] * count),
        "GIVEN": ",".join(f"given[{i}]" for i in range(count)),
    }  # fmt: skip
    path = folder / "kernel.cpp"
    path.write_text("".join(f"#define {n} {value}\n" for n, value in names.items()) + text)
    flags = ["-O1", "-std=c++17", "-mf16c", "-pthread", "-shared", "-fPIC"]
    made = folder / "kernel.so"
    subprocess.run(["g++", *flags, "-o", str(made), str(path)], check=True)
    return ctypes.CDLL(str(made))


def run(kernel: ctypes.CDLL, walk: ClusterWalk, tensors: Sequence[np.ndarray]) -> None:
    """Runs the kernel on its arguments."""
    count = 5 + 2 * len(walk.recurrence.states)
    given = (ctypes.c_void_p * count)(*(t.ctypes.data for t in tensors))
    kernel.run(given, walk.clusters, walk.recurrence.directions)
