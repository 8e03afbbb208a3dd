# causal as mh.kn, tiles m=32 n=64 k=32 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   X[b, m, n] = 5.0 * tanh(S[b, m, n] / 5.0) - 0.1 * n
#   X_inside[b, m, n] = select(n <= m, X[b, m, n], -3.4028234663852886e+38)
#   R[b, m] = max[n] X_inside[b, m, n] * 1.4426950408889634 where n <= m
#   P[b, m, n] = exp2(X_inside[b, m, n] * 1.4426950408889634 - select(R[b, m] <=
#       -1.7014117331926443e+38, 0.0, R[b, m]))
#   Z[b, m] = sum[n] P[b, m, n] where n <= m
#   U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h] where n <= m
#   O[b, m, h] = select(U[b, m, h] == 0.0, 0.0, U[b, m, h] / Z[b, m])

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def attention_causal_whole(Q_ptr, K_ptr, V_ptr, O_ptr):
    pid = tl.program_id(0)
    b = pid % 12
    m_start = (15 - pid // 12) * 32
    m = m_start + tl.arange(0, 32)
    h = tl.arange(0, 64)
    S_0 = tl.zeros((32, 64), tl.float32)
    S_1 = tl.zeros((32, 64), tl.float32)
    for k_start in range(0, 64, 32):
        k = k_start + tl.arange(0, 32)
        Q = tl.load(Q_ptr + b * 32768 + m[:, None] * 64 + k[None, :])
        # n: iteration 1 of 2
        n = tl.arange(0, 64)
        K = tl.load(K_ptr + b * 8192 + k[:, None] + n[None, :] * 64)
        S_0 = tl.dot(Q, K, S_0)
        # n: iteration 2 of 2
        n = 64 + tl.arange(0, 64)
        K = tl.load(K_ptr + b * 8192 + k[:, None] + n[None, :] * 64)
        S_1 = tl.dot(Q, K, S_1)
    R = tl.full((32,), LOWEST, tl.float32)
    Z = tl.zeros((32,), tl.float32)
    U = tl.zeros((32, 64), tl.float32)
    # n: iteration 1 of 2
    n = tl.arange(0, 64)
    X = 5.0 * (1.0 - 2.0 / (tl.exp2(S_0 * 0.5770780163555853) + 1.0)) - (0.1 * n)[None, :]
    X_inside = tl.where(n[None, :] <= m[:, None], X, LOWEST)
    R_old = R
    R = tl.maximum(R, tl.max(X_inside, 1) * 1.4426950408889634)
    Z = tl.exp2(R_old - R) * Z
    U = tl.exp2(R_old - R)[:, None] * U
    P_part_1 = (
        X_inside * 1.4426950408889634 - tl.where(R <= -1.7014117331926443e+38, 0.0, R)[:, None]
    )
    P = tl.exp2(P_part_1)
    Z += tl.sum(P, 1)
    V = tl.load(V_ptr + b * 8192 + n[:, None] * 64 + h[None, :])
    U = tl.dot(P, V.to(tl.float32), U, input_precision="ieee")
    # n: iteration 2 of 2
    n = 64 + tl.arange(0, 64)
    if 64 <= m_start + 31:
        X = 5.0 * (1.0 - 2.0 / (tl.exp2(S_1 * 0.5770780163555853) + 1.0)) - (0.1 * n)[None, :]
        X_inside = tl.where(n[None, :] <= m[:, None], X, LOWEST)
        R_old = R
        R = tl.maximum(R, tl.max(X_inside, 1) * 1.4426950408889634)
        Z = tl.exp2(R_old - R) * Z
        U = tl.exp2(R_old - R)[:, None] * U
        P_part_1 = (
            X_inside * 1.4426950408889634 - tl.where(R <= -1.7014117331926443e+38, 0.0, R)[:, None]
        )
        P = tl.exp2(P_part_1)
        Z += tl.sum(P, 1)
        V = tl.load(V_ptr + b * 8192 + n[:, None] * 64 + h[None, :])
        U = tl.dot(P, V.to(tl.float32), U, input_precision="ieee")
    O = tl.where(U == 0.0, 0.0, U / Z[:, None])
    tl.store(O_ptr + b * 32768 + m[:, None] * 64 + h[None, :], O.to(tl.float16))
