#include <cuda_fp16.h>
#include <cuda_bf16.h>


__device__ __forceinline__ float max_or_nan(float x, float y) {
  return x != x ? x : y != y ? y : fmaxf(x, y);
}
__device__ __forceinline__ float min_or_nan(float x, float y) {
  return x != x ? x : y != y ? y : fminf(x, y);
}
__device__ __forceinline__ float fast_tanh(float x) {
  return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}


// An address of this block's shared memory, as that of the same place in another block's.
__device__ __forceinline__ unsigned in_block(unsigned address, unsigned block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Writes to another block, and counts the bytes where these have arrived.
__device__ __forceinline__ void send(unsigned address, unsigned bits, unsigned arrived) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               :: "r"(address), "r"(bits), "r"(arrived) : "memory");
}
__device__ __forceinline__ void prepare(unsigned arrived) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
               "fence.mbarrier_init.release.cluster;" :: "r"(arrived) : "memory");
}
__device__ __forceinline__ void expect(unsigned arrived, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(arrived), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(unsigned arrived, unsigned parity) {
  asm volatile("{ .reg .pred done;\n"
               "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again; }" :: "r"(arrived), "r"(parity) : "memory");
}
__device__ __forceinline__ void all_blocks() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}


__device__ __forceinline__ void multiply(float (&sums)[4], uint4 a, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256, 1)
narrow_both_ways(const float* __restrict__ given, const uint4* __restrict__ square, const int* __restrict__ lengths, const float* __restrict__ first_h, const float* __restrict__ first_c, float* __restrict__ out, float* __restrict__ last_h, float* __restrict__ last_c) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int d = blockIdx.z, block = blockIdx.x, begun = block * 10;
  const int first = min(blockIdx.y * 3, 2);
  extern __shared__ __align__(128) unsigned char shared[];
  __nv_bfloat16* vector_h = reinterpret_cast<__nv_bfloat16*>(shared + 0);
  __nv_bfloat16* vector_v = reinterpret_cast<__nv_bfloat16*>(shared + 1152);
  float* sums = reinterpret_cast<float*>(shared + 1728);
  const unsigned arrived = __cvta_generic_to_shared(shared + 2496);
  const unsigned h_at = __cvta_generic_to_shared(vector_h);
  const unsigned v_at = __cvta_generic_to_shared(vector_v);
  if (thread < 4) prepare(arrived + 8 * thread);
  square += (d * 4 + block) * 1024 + thread;
  uint4 held[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    held[i] = square[i * 256];
  }
  for (int i = thread; i < 576; i += 256) {
    const int r = i / 96, j = i % 96;
    vector_h[i] = __float2bfloat16_rn(r < 3 && j < 40 ? first_h[(d * 5 + first + r) * 40 + j] : 0.0f);
  }
  for (int i = thread; i < 288; i += 256) {
    const int r = i / 96, j = i % 96;
    vector_v[i] = __float2bfloat16_rn(0.0f);
  }
  int count = 0;
  #pragma unroll
  for (int r = 0; r < 3; ++r) {
    count = max(count, min(lengths[first + r], 4));
  }
  float state_h[1];
  float state_c[1];
  float kept_u[1];
  float kept_v[1];
  float x_x[1];
  float x_y[1];
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    const int item = thread + i * 256;
    if (item - lane >= 30) break;
    const int r = min(item / 10, 2), u = item % 10;
    const int unit = begun + u;
    const bool there = item < 30 && unit < 40;
    state_h[i] = there ? first_h[(d * 5 + first + r) * 40 + unit] : 0.0f;
    state_c[i] = there ? first_c[(d * 5 + first + r) * 40 + unit] : 0.0f;
  }
  if (0 < count) {
    const int at = d ? count - 1 - (0) : 0;
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 30) break;
      const int r = min(item / 10, 2), u = item % 10;
      const int unit = begun + u;
      const bool there = item < 30 && unit < 40;
      x_x[i] = there ? given[(((at * 5 + first + r) * 2 + d) * 2 + 0) * 40 + unit] : 0.0f;
      x_y[i] = there ? given[(((at * 5 + first + r) * 2 + d) * 2 + 1) * 40 + unit] : 0.0f;
    }
  }
  all_blocks();
  for (int t = 0; t < count; ++t) {
    const int at = d ? count - 1 - (t) : t;
    const int now = t % 2, then = 1 - now;
    if (thread == 0) {
      if (t + 1 < count) expect(arrived + 8 * (0 + then), 240);
      expect(arrived + 8 * (2 + 0), 240);
    }
    // sum_u, sum_v: by h
    if (t > 0) wait(arrived + 8 * (0 + now), (t - 1) / 2 % 2);
    if (warp < 4) {
      const int part = warp / 2, group = warp % 2;
      float made[1][2][4] = {};
      const uint4* from = reinterpret_cast<const uint4*>(vector_h + now * 288 + min(lane / 4, 2) * 96 + part * 32);
      #pragma unroll
      for (int k = 0; k < 1; ++k) {
        const uint4 x = from[k * 4 + lane % 4];
        #pragma unroll
        for (int m = 0; m < 1; ++m) {
          multiply(made[m][0], held[0 + (m * 1 + k) * 2], x.x, x.y);
          multiply(made[m][1], held[0 + (m * 1 + k) * 2 + 1], x.z, x.w);
        }
      }
      #pragma unroll
      for (int m = 0; m < 1; ++m) {
        #pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int r = lane % 4 * 2 + e;
          if (r >= 3) break;
          float* to = (sums + (part * 3 + r) * 32 + (m * 2 + group) * 16) + lane / 4;
          to[0] = made[m][0][e] + made[m][1][e];
          to[8] = made[m][0][e + 2] + made[m][1][e + 2];
        }
      }
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 30) break;
      const int r = min(item / 10, 2), u = item % 10;
      const int unit = begun + u;
      const bool there = item < 30 && unit < 40;
      float x_sum_u = 0.0f;
      #pragma unroll
      for (int p = 0; p < 2; ++p) {
        x_sum_u += sums[(p * 3 + r) * 32 + 0 + u];
      }
      float x_sum_v = 0.0f;
      #pragma unroll
      for (int p = 0; p < 2; ++p) {
        x_sum_v += sums[(p * 3 + r) * 32 + 10 + u];
      }
      const float x_u = (x_x[i] + (x_sum_u * 0.5f));
      kept_u[i] = x_u;
      const float x_v = max_or_nan((x_sum_v * state_c[i]), x_y[i]);
      kept_v[i] = x_v;
      unsigned bits = __bfloat16_as_ushort(__float2bfloat16_rn(there ? x_v : 0.0f));
      unsigned place = v_at + (0 * 288 + r * 96 + unit) * 2;
      const unsigned other = __shfl_xor_sync(0xffffffffu, bits, 1);
      bits = u % 2 ? other | bits << 16 : bits | other << 16;
      place -= u % 2 * 2;
      if (item < 30) {
        #pragma unroll
        for (int b = 0; b < 2; ++b) {
          const unsigned to = b * 2 + u % 2;
          send(in_block(place, to), bits, in_block(arrived + 8 * (2 + 0), to));
        }
      }
    }
    // sum_w: by v
    wait(arrived + 8 * (2 + 0), t % 2);
    if (warp < 2) {
      const int part = warp / 1, group = warp % 1;
      float made[1][2][4] = {};
      const uint4* from = reinterpret_cast<const uint4*>(vector_v + 0 * 288 + min(lane / 4, 2) * 96 + part * 32);
      #pragma unroll
      for (int k = 0; k < 1; ++k) {
        const uint4 x = from[k * 4 + lane % 4];
        #pragma unroll
        for (int m = 0; m < 1; ++m) {
          multiply(made[m][0], held[2 + (m * 1 + k) * 2], x.x, x.y);
          multiply(made[m][1], held[2 + (m * 1 + k) * 2 + 1], x.z, x.w);
        }
      }
      #pragma unroll
      for (int m = 0; m < 1; ++m) {
        #pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int r = lane % 4 * 2 + e;
          if (r >= 3) break;
          float* to = (sums + (part * 3 + r) * 16 + (m * 1 + group) * 16) + lane / 4;
          to[0] = made[m][0][e] + made[m][1][e];
          to[8] = made[m][0][e + 2] + made[m][1][e + 2];
        }
      }
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 30) break;
      const int r = min(item / 10, 2), u = item % 10;
      const int unit = begun + u;
      const bool there = item < 30 && unit < 40;
      float x_sum_w = 0.0f;
      #pragma unroll
      for (int p = 0; p < 2; ++p) {
        x_sum_w += sums[(p * 3 + r) * 16 + 0 + u];
      }
      const float x_next_c = (kept_u[i] - (0.25f * x_sum_w));
      const float x_next = (fast_tanh(x_next_c) + __fdividef(state_h[i], 4.0f));
      const bool within = at < lengths[first + r];
      if (there) out[((at * 2 + d) * 5 + first + r) * 40 + unit] = within ? x_next : 0.0f;
      if (within) state_h[i] = x_next;
      if (within) state_c[i] = x_next_c;
      if (t + 1 < count) {
        unsigned bits = __bfloat16_as_ushort(__float2bfloat16_rn(there ? state_h[i] : 0.0f));
        unsigned place = h_at + (then * 288 + r * 96 + unit) * 2;
        const unsigned other = __shfl_xor_sync(0xffffffffu, bits, 1);
        bits = u % 2 ? other | bits << 16 : bits | other << 16;
        place -= u % 2 * 2;
        if (item < 30) {
          #pragma unroll
          for (int b = 0; b < 2; ++b) {
            const unsigned to = b * 2 + u % 2;
            send(in_block(place, to), bits, in_block(arrived + 8 * (0 + then), to));
          }
        }
      }
    }
    if (t + 1 < count) {
      const int at = d ? count - 1 - (t + 1) : t + 1;
      #pragma unroll
      for (int i = 0; i < 1; ++i) {
        const int item = thread + i * 256;
        if (item - lane >= 30) break;
        const int r = min(item / 10, 2), u = item % 10;
        const int unit = begun + u;
        const bool there = item < 30 && unit < 40;
        x_x[i] = there ? given[(((at * 5 + first + r) * 2 + d) * 2 + 0) * 40 + unit] : 0.0f;
        x_y[i] = there ? given[(((at * 5 + first + r) * 2 + d) * 2 + 1) * 40 + unit] : 0.0f;
      }
    }
  }
  all_blocks();
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    const int item = thread + i * 256;
    if (item - lane >= 30) break;
    const int r = min(item / 10, 2), u = item % 10;
    const int unit = begun + u;
    const bool there = item < 30 && unit < 40;
    if (there) {
      last_h[(d * 5 + first + r) * 40 + unit] = state_h[i];
      last_c[(d * 5 + first + r) * 40 + unit] = state_c[i];
      for (int at = count; at < 4; ++at)
        out[((at * 2 + d) * 5 + first + r) * 40 + unit] = 0.0f;
    }
  }
}
