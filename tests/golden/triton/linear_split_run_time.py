# linear as mn.k, tiles m=64 n=64 k=32, m from 1 to 512, k from 1 to 1024, k in 5 parts
#
#   C[m, n] = sum[k] A[m, k] * B[k, n]
#   Y[m, n] = max(C[m, n] + bias[n], 0.0)

import triton
import triton.language as tl


@triton.jit
def linear_split_run_time(A_ptr, B_ptr, C_parts_ptr, m_size, k_size):
    pid = tl.program_id(0)
    n_start = pid % 4 * 64
    m_start = pid // 4 * 64
    part = tl.program_id(1)
    k_span = tl.cdiv(tl.cdiv(k_size, 32), 5) * 32
    k_first = part * k_span
    m = m_start + tl.arange(0, 64)
    m_in = m < m_size
    n = n_start + tl.arange(0, 64)
    C = tl.zeros((64, 64), tl.float32)
    for k_start in range(k_first, tl.minimum(k_first + k_span, k_size), 32):
        k = k_start + tl.arange(0, 32)
        k_in = k < k_size
        A = tl.load(
            A_ptr + m[:, None] * k_size + k[None, :], mask=m_in[:, None] & k_in[None, :], other=0.0
        )
        B = tl.load(B_ptr + k[:, None] * 256 + n[None, :], mask=k_in[:, None], other=0.0)
        C = tl.dot(A, B, C)
    tl.store(C_parts_ptr + part * 131072 + m[:, None] * 256 + n[None, :], C, mask=m_in[:, None])


@triton.jit
def linear_split_run_time_combine(bias_ptr, Y_ptr, C_parts_ptr, m_size):
    pid = tl.program_id(0)
    n_start = pid % 4 * 64
    m_start = pid // 4 * 64
    m = m_start + tl.arange(0, 64)
    m_in = m < m_size
    n = n_start + tl.arange(0, 64)
    C_at = C_parts_ptr + m[:, None] * 256 + n[None, :]
    C = tl.zeros((64, 64), tl.float32)
    for peer in tl.static_range(5):
        C_part = tl.load(C_at + peer * 131072, mask=m_in[:, None], other=0.0, cache_modifier=".cg")
        C += C_part
    bias = tl.load(bias_ptr + n).to(tl.float32)
    Y = tl.maximum(C + bias[None, :], 0.0)
    tl.store(Y_ptr + m[:, None] * 256 + n[None, :], Y.to(tl.float16), mask=m_in[:, None])
