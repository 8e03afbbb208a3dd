# attention_12_1_2048_64_64 as mh.nk, tiles m=1 n=64 k=64 h=64, n in 8 parts
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
def attention_split_last(
    Q_ptr, K_ptr, V_ptr, O_ptr, R_parts_ptr, Z_parts_ptr, U_parts_ptr, ended_ptr
):
    pid = tl.program_id(0)
    b = pid
    part = tl.program_id(1)
    n_first = part * 256
    m = tl.arange(0, 16)
    m_in = m < 1
    k = tl.arange(0, 64)
    h = tl.arange(0, 64)
    Q = tl.load(Q_ptr + b * 64 + m[:, None] * 64 + k[None, :], mask=m_in[:, None], other=0.0)
    R = tl.full((16,), LOWEST, tl.float32)
    Z = tl.zeros((16,), tl.float32)
    U = tl.zeros((16, 64), tl.float32)
    for n_start in range(n_first, n_first + 256, 64):
        n = n_start + tl.arange(0, 64)
        K = tl.load(K_ptr + b * 131072 + k[:, None] + n[None, :] * 64)
        S = tl.dot(Q, K)
        R_old = R
        R = tl.maximum(R, tl.max(S, 1) * 0.18033688011112042)
        Z = tl.exp2(R_old - R) * Z
        U = tl.exp2(R_old - R)[:, None] * U
        P = tl.exp2(S * 0.18033688011112042 - R[:, None])
        Z += tl.sum(P, 1)
        V = tl.load(V_ptr + b * 131072 + n[:, None] * 64 + h[None, :])
        U = tl.dot(P.to(tl.float16), V, U)
    tl.store(R_parts_ptr + part * 12 + b + m, R, mask=m_in)
    tl.store(Z_parts_ptr + part * 12 + b + m, Z, mask=m_in)
    tl.store(
        U_parts_ptr + part * 768 + b * 64 + m[:, None] * 64 + h[None, :], U, mask=m_in[:, None]
    )
    tl.debug_barrier()
    parts_before = tl.atomic_add(ended_ptr + pid, 1, sem="acq_rel")
    if parts_before == 7:
        tl.store(ended_ptr + pid, 0)
        R_at = R_parts_ptr + b + m
        R = tl.full((16,), LOWEST, tl.float32)
        for peer in tl.static_range(8):
            R_part = tl.load(R_at + peer * 12, mask=m_in, other=0.0, cache_modifier=".cg")
            R = tl.maximum(R, R_part)
        Z_at = Z_parts_ptr + b + m
        Z = tl.zeros((16,), tl.float32)
        for peer in tl.static_range(8):
            Z_part = tl.load(Z_at + peer * 12, mask=m_in, other=0.0, cache_modifier=".cg")
            R_part = tl.load(R_at + peer * 12, mask=m_in, other=0.0, cache_modifier=".cg")
            Z += tl.exp2(R_part - R) * Z_part
        U_at = U_parts_ptr + b * 64 + m[:, None] * 64 + h[None, :]
        U = tl.zeros((16, 64), tl.float32)
        for peer in tl.static_range(8):
            U_part = tl.load(U_at + peer * 768, mask=m_in[:, None], other=0.0, cache_modifier=".cg")
            R_part = tl.load(R_at + peer * 12, mask=m_in, other=0.0, cache_modifier=".cg")
            U += tl.exp2(R_part - R)[:, None] * U_part
        O = tl.where(U == 0.0, 0.0, U / Z[:, None])
        tl.store(
            O_ptr + b * 64 + m[:, None] * 64 + h[None, :], O.to(tl.float16), mask=m_in[:, None]
        )
