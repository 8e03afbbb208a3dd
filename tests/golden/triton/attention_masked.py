# masked as mh.nk, tiles m=32 n=32 k=64 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   X[b, m, n] = S[b, m, n] * 0.3 + M[b, n]
#   R[b, m] = max[n] X[b, m, n]
#   P[b, m, n] = exp(X[b, m, n] - R[b, m])
#   Z[b, m] = sum[n] P[b, m, n]
#   O_sum[b, m, h] = sum[n] P[b, m, n] * V[b, n, h]
#   O[b, m, h] = select(O_sum[b, m, h] == 0.0, 0.0, O_sum[b, m, h] / Z[b, m])

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def attention_masked(Q_ptr, K_ptr, V_ptr, M_ptr, O_ptr):
    pid = tl.program_id(0)
    m_start = pid % 16 * 32
    b = pid // 16
    m = m_start + tl.arange(0, 32)
    k = tl.arange(0, 64)
    h = tl.arange(0, 64)
    Q = tl.load(Q_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
    R = tl.full((32,), LOWEST, tl.float32)
    Z = tl.zeros((32,), tl.float32)
    O_sum = tl.zeros((32, 64), tl.float32)
    for n_start in range(0, 200, 32):
        n = n_start + tl.arange(0, 32)
        n_in = n < 200
        K = tl.load(K_ptr + b * 12800 + k[:, None] + n[None, :] * 64, mask=n_in[None, :], other=0.0)
        S = tl.dot(Q, K, input_precision="ieee")
        M = tl.load(M_ptr + b * 200 + n, mask=n_in, other=0.0)
        X = S * 0.3 + M[None, :]
        R_old = R
        R = tl.maximum(R, tl.max(tl.where(n_in[None, :], X, LOWEST), 1))
        Z = Z * tl.exp(R_old - R)
        O_sum = O_sum * tl.exp(R_old - R)[:, None]
        P = tl.exp(X - R[:, None])
        Z += tl.sum(tl.where(n_in[None, :], P, 0.0), 1)
        V = tl.load(V_ptr + b * 12800 + n[:, None] * 64 + h[None, :], mask=n_in[:, None], other=0.0)
        O_sum = tl.dot(tl.where(n_in[None, :], P, 0.0), V, O_sum, input_precision="ieee")
    O = tl.where(O_sum == 0.0, 0.0, O_sum / Z[:, None])
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O)
