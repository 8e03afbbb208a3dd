# linear as mn.k, tiles m=64 n=64 k=32
#
#   C[m, n] = sum[k] A[m, k] * B[k, n]
#   Y[m, n] = max(C[m, n] + bias[n], 0.0)

import triton
import triton.language as tl


@triton.jit
def tf32(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def linear_rounded(A_ptr, B_ptr, bias_ptr, Y_ptr):
    pid = tl.program_id(0)
    n_start = pid % 4 * 64
    m_start = pid // 4 * 64
    m = m_start + tl.arange(0, 64)
    n = n_start + tl.arange(0, 64)
    C = tl.zeros((64, 64), tl.float32)
    for k_start in range(0, 100, 32):
        k = k_start + tl.arange(0, 32)
        k_in = k < 100
        A = tl.load(A_ptr + m[:, None] * 100 + k[None, :], mask=k_in[None, :], other=0.0)
        B = tl.load(B_ptr + k[:, None] * 256 + n[None, :], mask=k_in[:, None], other=0.0)
        C = tl.dot(tf32(A), tf32(B), C, input_precision="tf32")
    bias = tl.load(bias_ptr + n)
    Y = tl.maximum(C + bias[None, :], 0.0)
    tl.store(Y_ptr + m[:, None] * 256 + n[None, :], Y)
