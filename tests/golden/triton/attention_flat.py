# attention_12_512_256_64_64 as m.n(k,h), tiles m=64 n=64 k=32 h=32
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   R[b, m] = max[n] S[b, m, n] * 0.18033688011112042
#   P[b, m, n] = exp2(S[b, m, n] * 0.18033688011112042 - R[b, m])
#   Z[b, m] = sum[n] P[b, m, n]
#   U[b, m, h] = sum[n] float16(P[b, m, n]) * V[b, n, h]
#   O[b, m, h] = select(U[b, m, h] == 0.0, 0.0, U[b, m, h] / Z[b, m])

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def attention_flat(Q_ptr, K_ptr, V_ptr, O_ptr):
    pid = tl.program_id(0)
    m_start = pid % 8 * 64
    b = pid // 8
    m = m_start + tl.arange(0, 64)
    R = tl.full((64,), LOWEST, tl.float32)
    Z = tl.zeros((64,), tl.float32)
    U_0 = tl.zeros((64, 32), tl.float32)
    U_1 = tl.zeros((64, 32), tl.float32)
    for n_start in range(0, 256, 64):
        n = n_start + tl.arange(0, 64)
        S = tl.zeros((64, 64), tl.float32)
        for k_start in range(0, 64, 32):
            k = k_start + tl.arange(0, 32)
            Q = tl.load(Q_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
            K = tl.load(K_ptr + b * 16384 + k[:, None] + n[None, :] * 64)
            S = tl.dot(Q, K, S)
        R_old = R
        R = tl.maximum(R, tl.max(S, 1) * 0.18033688011112042)
        Z = tl.exp2(R_old - R) * Z
        U_0 = tl.exp2(R_old - R)[:, None] * U_0
        U_1 = tl.exp2(R_old - R)[:, None] * U_1
        P = tl.exp2(S * 0.18033688011112042 - R[:, None])
        Z += tl.sum(P, 1)
        # h: iteration 1 of 2
        h = tl.arange(0, 32)
        V = tl.load(V_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        U_0 = tl.dot(P.to(tl.float16), V, U_0)
        # h: iteration 2 of 2
        h = 32 + tl.arange(0, 32)
        V = tl.load(V_ptr + b * 16384 + n[:, None] * 64 + h[None, :])
        U_1 = tl.dot(P.to(tl.float16), V, U_1)
    # h: iteration 1 of 2
    h = tl.arange(0, 32)
    O = tl.where(U_0 == 0.0, 0.0, U_0 / Z[:, None])
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O.to(tl.float16))
    # h: iteration 2 of 2
    h = 32 + tl.arange(0, 32)
    O = tl.where(U_1 == 0.0, 0.0, U_1 / Z[:, None])
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O.to(tl.float16))
