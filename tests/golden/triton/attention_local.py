# local as mh.nk, tiles m=64 n=32 k=64 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   R[b, m] = max[n] S[b, m, n] where n <= m and m <= n + 20
#   P[b, m, n] = exp(S[b, m, n] - R[b, m])
#   Z[b, m] = sum[n] P[b, m, n] where n <= m and m <= n + 20
#   U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m and m <= n + 20
#   O[b, m, h] = U[b, m, h] / (Z[b, m] + 0.001)

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def attention_local(Q_ptr, K_ptr, V_ptr, O_ptr):
    pid = tl.program_id(0)
    m_start = pid % 8 * 64
    b = pid // 8
    m = m_start + tl.arange(0, 64)
    k = tl.arange(0, 64)
    h = tl.arange(0, 64)
    Q = tl.load(Q_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
    R = tl.full((64,), LOWEST, tl.float32)
    Z = tl.zeros((64,), tl.float32)
    U = tl.zeros((64, 64), tl.float32)
    for n_start in range(tl.maximum(m_start - 20, 0) // 32 * 32, tl.minimum(m_start + 64, 512), 32):
        n = n_start + tl.arange(0, 32)
        K = tl.load(K_ptr + b * 32768 + k[:, None] + n[None, :] * 64)
        S = tl.dot(Q, K)
        R_old = R
        R_mask = (n[None, :] <= m[:, None]) & (m[:, None] <= (n + 20)[None, :])
        R = tl.maximum(R, tl.max(tl.where(R_mask, S, LOWEST), 1))
        Z = Z * tl.exp(R_old - R)
        U = U * tl.exp(R_old - R)[:, None]
        P = tl.exp(S - R[:, None])
        Z_mask = (n[None, :] <= m[:, None]) & (m[:, None] <= (n + 20)[None, :])
        Z += tl.sum(tl.where(Z_mask, P, 0.0), 1)
        V = tl.load(V_ptr + b * 32768 + n[:, None] * 64 + h[None, :])
        U_mask = (n[None, :] <= m[:, None]) & (m[:, None] <= (n + 20)[None, :])
        U = tl.dot(tl.where(U_mask, P, 0.0), V.to(tl.float32), U, input_precision="ieee")
    O = U / (Z + 0.001)[:, None]
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O.to(tl.float16))
