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
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 1)
tensor_core_cluster(const __half* __restrict__ given, const uint4* __restrict__ square, const __half* __restrict__ fixed, const __half* __restrict__ first_h, __half* __restrict__ out, __half* __restrict__ last_h) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int d = blockIdx.z, block = blockIdx.x, begun = block * 20;
  const int first = blockIdx.y * 2;
  extern __shared__ __align__(128) unsigned char shared[];
  __half* vector_h = reinterpret_cast<__half*>(shared + 0);
  float* sums = reinterpret_cast<float*>(shared + 768);
  const unsigned arrived = __cvta_generic_to_shared(shared + 1280);
  const unsigned h_at = __cvta_generic_to_shared(vector_h);
  if (thread < 2) prepare(arrived + 8 * thread);
  square += (d * 2 + block) * 512 + thread;
  uint4 held[2];
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    held[i] = square[i * 256];
  }
  for (int i = thread; i < 384; i += 256) {
    const int r = i / 96, j = i % 96;
    vector_h[i] = __float2half_rn(r < 2 && j < 40 ? __half2float(first_h[(d * 2 + first + r) * 40 + j]) : 0.0f);
  }
  float state_h[1];
  float x_x[1];
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    const int item = thread + i * 256;
    if (item - lane >= 40) break;
    const int r = min(item / 20, 1), u = item % 20;
    const int unit = begun + u;
    const bool there = item < 40 && unit < 40;
    state_h[i] = there ? __half2float(first_h[(d * 2 + first + r) * 40 + unit]) : 0.0f;
  }
  if (0 < 4) {
    const int at = 0;
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 40) break;
      const int r = min(item / 20, 1), u = item % 20;
      const int unit = begun + u;
      const bool there = item < 40 && unit < 40;
      x_x[i] = there ? __half2float(given[(((at * 2 + first + r) * 1 + d) * 1 + 0) * 40 + unit]) : 0.0f;
    }
  }
  all_blocks();
  for (int t = 0; t < 4; ++t) {
    const int at = t;
    const int now = t % 2, then = 1 - now;
    if (thread == 0) {
      if (t + 1 < 4) expect(arrived + 8 * (0 + then), 160);
    }
    // sum: by h
    if (t > 0) wait(arrived + 8 * (0 + now), (t - 1) / 2 % 2);
    if (warp < 4) {
      const int part = warp / 2, group = warp % 2;
      float made[1][2][4] = {};
      const uint4* from = reinterpret_cast<const uint4*>(vector_h + now * 192 + min(lane / 4, 1) * 96 + part * 32);
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
          if (r >= 2) break;
          float* to = (sums + (part * 2 + r) * 32 + (m * 2 + group) * 16) + lane / 4;
          to[0] = made[m][0][e] + made[m][1][e];
          to[8] = made[m][0][e + 2] + made[m][1][e + 2];
        }
      }
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 40) break;
      const int r = min(item / 20, 1), u = item % 20;
      const int unit = begun + u;
      const bool there = item < 40 && unit < 40;
      float x_sum = 0.0f;
      #pragma unroll
      for (int p = 0; p < 2; ++p) {
        x_sum += sums[(p * 2 + r) * 32 + 0 + u];
      }
      const float x_scale = there ? __half2float(fixed[(d * 1 + 0) * 40 + unit]) : 0.0f;
      const float x_next = fast_tanh((x_x[i] + (x_sum * x_scale)));
      if (there) out[((at * 1 + d) * 2 + first + r) * 40 + unit] = __float2half_rn(x_next);
      state_h[i] = x_next;
      if (t + 1 < 4) {
        unsigned bits = __half_as_ushort(__float2half_rn(there ? state_h[i] : 0.0f));
        unsigned place = h_at + (then * 192 + r * 96 + unit) * 2;
        const unsigned other = __shfl_xor_sync(0xffffffffu, bits, 1);
        bits = u % 2 ? other | bits << 16 : bits | other << 16;
        place -= u % 2 * 2;
        if (item < 40) {
          #pragma unroll
          for (int b = 0; b < 1; ++b) {
            const unsigned to = b * 2 + u % 2;
            send(in_block(place, to), bits, in_block(arrived + 8 * (0 + then), to));
          }
        }
      }
    }
    if (t + 1 < 4) {
      const int at = t + 1;
      #pragma unroll
      for (int i = 0; i < 1; ++i) {
        const int item = thread + i * 256;
        if (item - lane >= 40) break;
        const int r = min(item / 20, 1), u = item % 20;
        const int unit = begun + u;
        const bool there = item < 40 && unit < 40;
        x_x[i] = there ? __half2float(given[(((at * 2 + first + r) * 1 + d) * 1 + 0) * 40 + unit]) : 0.0f;
      }
    }
  }
  all_blocks();
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    const int item = thread + i * 256;
    if (item - lane >= 40) break;
    const int r = min(item / 20, 1), u = item % 20;
    const int unit = begun + u;
    const bool there = item < 40 && unit < 40;
    if (there) {
      last_h[(d * 2 + first + r) * 40 + unit] = __float2half_rn(state_h[i]);
    }
  }
}
