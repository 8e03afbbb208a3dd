# gemm_12_512_256_64_64 as mh.nk, tiles m=64 n=64 k=32 h=64
#
#   C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]
#   E[b, m, h] = sum[n] float16(C[b, m, n]) * D[b, n, h]

import triton
import triton.language as tl


@triton.jit
def gemm_deep(A_ptr, B_ptr, D_ptr, E_ptr):
    pid = tl.program_id(0)
    m_start = pid % 8 * 64
    b = pid // 8
    m = m_start + tl.arange(0, 64)
    h = tl.arange(0, 64)
    E = tl.zeros((64, 64), tl.float32)
    for n_start in range(0, 256, 64):
        n = n_start + tl.arange(0, 64)
        C = tl.zeros((64, 64), tl.float32)
        for k_start in range(0, 64, 32):
            k = k_start + tl.arange(0, 32)
            A = tl.load(A_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
            B = tl.load(B_ptr + b * 16384 + k[:, None] * 256 + n[None, :])
            C = tl.dot(A, B, C)
        D = tl.load(D_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        E = tl.dot(C.to(tl.float16), D, E)
    tl.store(E_ptr + b * 32768 + m[:, None] * 64 + h[None, :], E.to(tl.float16))
