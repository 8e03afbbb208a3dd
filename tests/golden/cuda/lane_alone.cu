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

extern "C" __global__ void __launch_bounds__(256, 1)
lane_alone(const float* __restrict__ given, const uint4* __restrict__ square, const float* __restrict__ fixed, const int* __restrict__ lengths, const float* __restrict__ first_h, float* __restrict__ out, float* __restrict__ last_h) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int d = blockIdx.z, block = blockIdx.x, begun = block * 34;
  const int first = min(blockIdx.y * 2, 1);
  extern __shared__ __align__(128) unsigned char shared[];
  float* vector_h = reinterpret_cast<float*>(shared + 0);
  float* sums = reinterpret_cast<float*>(shared + 1280);
  square += (d * 1 + block) * 768 + thread;
  uint4 held[3];
  #pragma unroll
  for (int i = 0; i < 3; ++i) {
    held[i] = square[i * 256];
  }
  for (int i = thread; i < 320; i += 256) {
    const int r = i / 80, j = i % 80;
    vector_h[i] = r < 2 && j < 33 ? first_h[(d * 3 + first + r) * 33 + j] : 0.0f;
  }
  int count = 0;
  #pragma unroll
  for (int r = 0; r < 2; ++r) {
    count = max(count, min(lengths[first + r], 4));
  }
  float state_h[1];
  float x_x[1];
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    const int item = thread + i * 256;
    if (item - lane >= 68) break;
    const int r = min(item / 34, 1), u = item % 34;
    const int unit = begun + u;
    const bool there = item < 68 && unit < 33;
    state_h[i] = there ? first_h[(d * 3 + first + r) * 33 + unit] : 0.0f;
  }
  if (0 < count) {
    const int at = count - 1 - (0);
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 68) break;
      const int r = min(item / 34, 1), u = item % 34;
      const int unit = begun + u;
      const bool there = item < 68 && unit < 33;
      x_x[i] = there ? given[(((at * 3 + first + r) * 1 + d) * 1 + 0) * 33 + unit] : 0.0f;
    }
  }
  __syncthreads();
  for (int t = 0; t < count; ++t) {
    const int at = count - 1 - (t);
    const int now = t % 2, then = 1 - now;
    // sum: by h
    if (warp < 6) {
      const int part = warp / 2, group = warp % 2;
      float made[1][2] = {};
      const float* from = vector_h + now * 160 + part * 12;
      #pragma unroll
      for (int k = 0; k < 3; ++k) {
        float4 x[2];
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
          x[r] = *reinterpret_cast<const float4*>(from + r * 80 + k * 4);
        }
        #pragma unroll
        for (int m = 0; m < 1; ++m) {
          const uint4 a = held[0 + m * 3 + k];
          #pragma unroll
          for (int r = 0; r < 2; ++r) {
            made[m][r] = fmaf(__uint_as_float(a.x), x[r].x, made[m][r]);
            made[m][r] = fmaf(__uint_as_float(a.y), x[r].y, made[m][r]);
            made[m][r] = fmaf(__uint_as_float(a.z), x[r].z, made[m][r]);
            made[m][r] = fmaf(__uint_as_float(a.w), x[r].w, made[m][r]);
          }
        }
      }
      #pragma unroll
      for (int m = 0; m < 1; ++m) {
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
          (sums + (part * 2 + r) * 64 + (m * 2 + group) * 32)[lane] = made[m][r];
        }
      }
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
      const int item = thread + i * 256;
      if (item - lane >= 68) break;
      const int r = min(item / 34, 1), u = item % 34;
      const int unit = begun + u;
      const bool there = item < 68 && unit < 33;
      float x_sum = 0.0f;
      #pragma unroll
      for (int p = 0; p < 3; ++p) {
        x_sum += sums[(p * 2 + r) * 64 + 0 + u];
      }
      const float x_scale = there ? fixed[(d * 1 + 0) * 33 + unit] : 0.0f;
      const float x_next = tanhf((x_x[i] + (x_sum * x_scale)));
      const bool within = at < lengths[first + r];
      if (there) out[((at * 1 + d) * 3 + first + r) * 33 + unit] = within ? x_next : 0.0f;
      if (within) state_h[i] = x_next;
      if (t + 1 < count) {
        if (there) vector_h[then * 160 + r * 80 + unit] = state_h[i];
      }
    }
    if (t + 1 < count) {
      const int at = count - 1 - (t + 1);
      #pragma unroll
      for (int i = 0; i < 1; ++i) {
        const int item = thread + i * 256;
        if (item - lane >= 68) break;
        const int r = min(item / 34, 1), u = item % 34;
        const int unit = begun + u;
        const bool there = item < 68 && unit < 33;
        x_x[i] = there ? given[(((at * 3 + first + r) * 1 + d) * 1 + 0) * 33 + unit] : 0.0f;
      }
    }
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    const int item = thread + i * 256;
    if (item - lane >= 68) break;
    const int r = min(item / 34, 1), u = item % 34;
    const int unit = begun + u;
    const bool there = item < 68 && unit < 33;
    if (there) {
      last_h[(d * 3 + first + r) * 33 + unit] = state_h[i];
      for (int at = count; at < 4; ++at)
        out[((at * 1 + d) * 3 + first + r) * 33 + unit] = 0.0f;
    }
  }
}
