# local as mh.nk, tiles m=64 n=32 k=64 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   S_inside[b, m, n] = select(n <= m and m <= n + 20, S[b, m, n], -3.4028234663852886e+38)
#   R[b, m] = max[n] S_inside[b, m, n] * 1.4426950408889634 where n <= m and m <= n + 20
#   P[b, m, n] = exp2(S_inside[b, m, n] * 1.4426950408889634 - select(R[b, m] <=
#       -1.7014117331926443e+38, 0.0, R[b, m]))
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
        S_inside = (
            tl.where((n[None, :] <= m[:, None]) & (m[:, None] <= (n + 20)[None, :]), S, LOWEST)
        )
        R_old = R
        R = tl.maximum(R, tl.max(S_inside, 1) * 1.4426950408889634)
        Z = tl.exp2(R_old - R) * Z
        U = tl.exp2(R_old - R)[:, None] * U
        P_part_1 = (
            S_inside * 1.4426950408889634 - tl.where(R <= -1.7014117331926443e+38, 0.0, R)[:, None]
        )
        P = tl.exp2(P_part_1)
        Z += tl.sum(P, 1)
        V = tl.load(V_ptr + b * 32768 + n[:, None] * 64 + h[None, :])
        U = tl.dot(P, V.to(tl.float32), U, input_precision="ieee")
    O = U / (Z + 0.001)[:, None]
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O.to(tl.float16))
