# attention_12_512_256_64_64 as mh.nk, tiles m=64 n=64 k=64 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   R[b, m] = max[n] S[b, m, n] * 0.18033688011112042
#   P[b, m, n] = exp2(S[b, m, n] * 0.18033688011112042 - R[b, m])
#   Z[b, m] = sum[n] P[b, m, n]
#   U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h]
#   O[b, m, h] = select(U[b, m, h] == 0.0, 0.0, U[b, m, h] / Z[b, m])

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def attention_parts(Q_ptr, K_ptr, V_ptr, O_ptr):
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
    for n_start in range(0, 256, 64):
        n = n_start + tl.arange(0, 64)
        K = tl.load(K_ptr + b * 16384 + k[:, None] + n[None, :] * 64)
        S = tl.dot(Q, K, input_precision="tf32x3")
        R_old = R
        R = tl.maximum(R, tl.max(S, 1) * 0.18033688011112042)
        Z = tl.exp2(R_old - R) * Z
        U = tl.exp2(R_old - R)[:, None] * U
        P = tl.exp2(S * 0.18033688011112042 - R[:, None])
        Z += tl.sum(P, 1)
        V = tl.load(V_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        U = tl.dot(P, V, U, input_precision="tf32x3")
    O = tl.where(U == 0.0, 0.0, U / Z[:, None])
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O)
