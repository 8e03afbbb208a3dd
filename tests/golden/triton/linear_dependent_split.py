# linear as mn.k, tiles m=60 n=64 k=32, k in 5 parts
#
#   C[m, n] = sum[k] A[m, k] * B[k, n]
#   Y[m, n] = max(C[m, n] + bias[n], 0.0)

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def linear_dependent_split(A_ptr, B_ptr, C_parts_ptr):
    pid = tl.program_id(0)
    n_start = pid * 64
    part = tl.program_id(1)
    k_first = part * 224
    cuda.gdc_wait()
    m = tl.arange(0, 64)
    m_in = m < 60
    n = n_start + tl.arange(0, 64)
    C = tl.zeros((64, 64), tl.float32)
    for k_start in range(k_first, tl.minimum(k_first + 224, 1024), 32):
        k = k_start + tl.arange(0, 32)
        A = tl.load(A_ptr + m[:, None] * 1024 + k[None, :], mask=m_in[:, None], other=0.0)
        B = tl.load(B_ptr + k[:, None] * 256 + n[None, :])
        C = tl.dot(A, B, C)
    tl.store(C_parts_ptr + part * 15360 + m[:, None] * 256 + n[None, :], C, mask=m_in[:, None])


@triton.jit
def linear_dependent_split_combine(bias_ptr, Y_ptr, C_parts_ptr):
    pid = tl.program_id(0)
    n_start = pid * 64
    cuda.gdc_wait()
    m = tl.arange(0, 64)
    m_in = m < 60
    n = n_start + tl.arange(0, 64)
    C_at = C_parts_ptr + m[:, None] * 256 + n[None, :]
    C = tl.zeros((64, 64), tl.float32)
    for peer in tl.static_range(5):
        C_part = tl.load(C_at + peer * 15360, mask=m_in[:, None], other=0.0, cache_modifier=".cg")
        C += C_part
    bias = tl.load(bias_ptr + n).to(tl.float32)
    Y = tl.maximum(C + bias[None, :], 0.0)
    tl.store(Y_ptr + m[:, None] * 256 + n[None, :], Y.to(tl.float16), mask=m_in[:, None])
