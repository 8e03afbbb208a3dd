# gemm_12_512_256_64_64 as m.n(k,h), tiles m=64 n=64 k=64 h=32
#
#   C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]
#   E[b, m, h] = sum[n] float16(C[b, m, n]) * D[b, n, h]

import triton
import triton.language as tl


@triton.jit
def gemm_flat(A_ptr, B_ptr, D_ptr, E_ptr):
    pid = tl.program_id(0)
    m_start = pid % 8 * 64
    b = pid // 8
    m = m_start + tl.arange(0, 64)
    k = tl.arange(0, 64)
    A = tl.load(A_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
    E_0 = tl.zeros((64, 32), tl.float32)
    E_1 = tl.zeros((64, 32), tl.float32)
    for n_start in range(0, 256, 64):
        n = n_start + tl.arange(0, 64)
        B = tl.load(B_ptr + b * 16384 + k[:, None] * 256 + n[None, :])
        C = tl.dot(A, B)
        # h: iteration 1 of 2
        h = tl.arange(0, 32)
        D = tl.load(D_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        E_0 = tl.dot(C.to(tl.float16), D, E_0)
        # h: iteration 2 of 2
        h = 32 + tl.arange(0, 32)
        D = tl.load(D_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        E_1 = tl.dot(C.to(tl.float16), D, E_1)
    h = tl.arange(0, 32)
    tl.store(E_ptr + b * 32768 + m[:, None] * 64 + h[None, :], E_0.to(tl.float16))
    h = 32 + tl.arange(0, 32)
    tl.store(E_ptr + b * 32768 + m[:, None] * 64 + h[None, :], E_1.to(tl.float16))
