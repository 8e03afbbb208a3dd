# mlp as bm.n(k,h), tiles b=1 m=32 n=64 k=64 h=64
#
#   C[b, m, n] = sum[k] A[b, m, k] * B[k, n]
#   T[b, m, n] = (C[b, m, n] + e[n]) * 0.5 * (1.0 + erf((C[b, m, n] + e[n]) * 0.7))
#   E[b, m, h] = sum[n] T[b, m, n] * D[n, h]
#   Y[b, m, h] = E[b, m, h] + f[h] + G[b, m, h]

import triton
import triton.language as tl


@triton.jit
def mlp(A_ptr, B_ptr, D_ptr, e_ptr, f_ptr, G_ptr, Y_ptr):
    pid = tl.program_id(0)
    m_start = pid % 16 * 32
    b = pid // 16
    m = m_start + tl.arange(0, 32)
    k = tl.arange(0, 64)
    h = tl.arange(0, 64)
    A = tl.load(A_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
    E = tl.zeros((32, 64), tl.float32)
    for n_start in range(0, 256, 64):
        n = n_start + tl.arange(0, 64)
        B = tl.load(B_ptr + k[:, None] * 256 + n[None, :])
        C = tl.dot(A, B)
        e = tl.load(e_ptr + n).to(tl.float32)
        T = (C + e[None, :]) * 0.5 * (1.0 + tl.erf((C + e[None, :]) * 0.7))
        D = tl.load(D_ptr + n[:, None] * 64 + h[None, :])
        E = tl.dot(T, D.to(tl.float32), E, input_precision="ieee")
    f = tl.load(f_ptr + h).to(tl.float32)
    G = tl.load(G_ptr + b * 32768 + m[:, None] * 64 + h[None, :]).to(tl.float32)
    Y = E + f[None, :] + G
    tl.store(Y_ptr + b * 32768 + m[:, None] * 64 + h[None, :], Y.to(tl.float16))
