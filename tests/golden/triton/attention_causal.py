# causal as mh.nk, tiles m=64 n=32 k=64 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   X[b, m, n] = 5.0 * tanh(S[b, m, n] / 5.0) - 0.1 * n
#   R[b, m] = max[n] X[b, m, n] where n <= m
#   P[b, m, n] = exp(X[b, m, n] - R[b, m])
#   Z[b, m] = sum[n] P[b, m, n] where n <= m
#   U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m
#   O[b, m, h] = U[b, m, h] / Z[b, m]

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def attention_causal(Q_ptr, K_ptr, V_ptr, O_ptr):
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
    for n_start in range(0, tl.minimum(m_start + 64, 256), 32):
        n = n_start + tl.arange(0, 32)
        K = tl.load(K_ptr + b * 16384 + k[:, None] + n[None, :] * 64)
        S = tl.dot(Q, K, input_precision="ieee")
        X = 5.0 * (2.0 * tl.sigmoid(2.0 * S / 5.0) - 1.0) - (0.1 * n)[None, :]
        R_old = R
        R = tl.maximum(R, tl.max(tl.where(n[None, :] <= m[:, None], X, LOWEST), 1))
        Z = Z * tl.exp(R_old - R)
        U = U * tl.exp(R_old - R)[:, None]
        P = tl.exp(X - R[:, None])
        Z += tl.sum(tl.where(n[None, :] <= m[:, None], P, 0.0), 1)
        V = tl.load(V_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        U = tl.dot(tl.where(n[None, :] <= m[:, None], P, 0.0), V, U, input_precision="ieee")
    O = U / Z[:, None]
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O)
