# gemm_12_500_256_64_64 as mh.nk, tiles m=48 n=96 k=64 h=64
#
#   C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]
#   E[b, m, h] = sum[n] float16(C[b, m, n]) * D[b, n, h]

import triton
import triton.language as tl


@triton.jit
def gemm_padded(A_ptr, B_ptr, D_ptr, E_ptr):
    pid = tl.program_id(0)
    m_start = pid % 11 * 48
    b = pid // 11
    m = m_start + tl.arange(0, 64)
    m_in = m < tl.minimum(m_start + 48, 500)
    k = tl.arange(0, 64)
    h = tl.arange(0, 64)
    A = tl.load(A_ptr + b * 32000 + m[:, None] * 64 + k[None, :], mask=m_in[:, None], other=0.0)
    E = tl.zeros((64, 64), tl.float32)
    for n_start in range(0, 256, 96):
        n = n_start + tl.arange(0, 128)
        n_in = n < tl.minimum(n_start + 96, 256)
        B = tl.load(
            B_ptr + b * 16384 + k[:, None] * 256 + n[None, :], mask=n_in[None, :], other=0.0
        )
        C = tl.dot(A, B)
        D = tl.load(D_ptr + b * 16384 + n[:, None] * 64 + h[None, :], mask=n_in[:, None], other=0.0)
        E = tl.dot(C.to(tl.float16), D, E)
    tl.store(E_ptr + b * 32000 + m[:, None] * 64 + h[None, :], E.to(tl.float16), mask=m_in[:, None])
