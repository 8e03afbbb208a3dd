"""What CUDA C has and C++ has not, for this machine: its words, and numbers of 16 bits.

Where HALF is defined, numbers of float16 are converted, whose header takes the compiler a while.
"""

from __future__ import annotations

LANGUAGE = """
#include <stdint.h>
#include <string.h>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
struct __half { uint16_t bits; };
struct __nv_bfloat16 { uint16_t bits; };
template <typename To, typename From> To same_bits(From x) {
  To to; memcpy(&to, &x, sizeof(to)); return to;
}
float __uint_as_float(unsigned x) { return same_bits<float>(x); }
unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
#ifdef HALF
#include <immintrin.h>
float __half2float(__half x) { return _cvtsh_ss(x.bits); }
__half __float2half_rn(float x) { return {(uint16_t)_cvtss_sh(x, 0)}; }
#endif
float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned bits = __float_as_uint(x);
  return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
"""
