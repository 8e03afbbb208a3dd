# linear as mn.k, tiles m=64 n=64 k=32
#
#   C[m, n] = sum[k] A[m, k] * B[k, n]
#   Y[m, n] = max(C[m, n] + bias[n], 0.0)

import triton
import triton.language as tl


@triton.jit
def linear(A_ptr, B_ptr, bias_ptr, Y_ptr):
    pid = tl.program_id(0)
    n_start = pid % 4 * 64
    m_start = pid // 4 * 64
    m = m_start + tl.arange(0, 64)
    n = n_start + tl.arange(0, 64)
    C = tl.zeros((64, 64), tl.float32)
    for k_start in range(0, 64, 32):
        k = k_start + tl.arange(0, 32)
        A = tl.load(A_ptr + m[:, None] * 64 + k[None, :])
        B = tl.load(B_ptr + k[:, None] * 256 + n[None, :])
        C = tl.dot(A, B, C, input_precision="ieee")
    bias = tl.load(bias_ptr + n)
    Y = tl.maximum(C + bias[None, :], 0.0)
    tl.store(Y_ptr + m[:, None] * 256 + n[None, :], Y)
