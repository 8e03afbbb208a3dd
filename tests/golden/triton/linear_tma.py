# linear as mn.k, tiles m=64 n=128 k=64
#
#   C[m, n] = sum[k] A[m, k] * B[k, n]
#   Y[m, n] = max(C[m, n] + bias[n], 0.0)

import triton
import triton.language as tl


@triton.jit
def linear_tma(bias_ptr, Y_ptr, A_map, B_map):
    pid = tl.program_id(0)
    n_start = pid % 2 * 128
    m_start = pid // 2 * 64
    m = m_start + tl.arange(0, 64)
    m_in = m < 500
    n = n_start + tl.arange(0, 128)
    C = tl.zeros((64, 128), tl.float32)
    for k_start in range(0, 512, 64):
        A = A_map.load([m_start, k_start])
        B = B_map.load([k_start, n_start])
        C = tl.dot(A, B, C)
    bias = tl.load(bias_ptr + n).to(tl.float32)
    Y = tl.maximum(C + bias[None, :], 0.0)
    tl.store(Y_ptr + m[:, None] * 256 + n[None, :], Y.to(tl.float16), mask=m_in[:, None])
