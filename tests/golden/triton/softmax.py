# softmax as bm.n, tiles b=1 m=1 n=128
#
#   R[b, m] = max[n] X[b, m, n]
#   P[b, m, n] = exp(X[b, m, n] - R[b, m])
#   Z[b, m] = sum[n] P[b, m, n]
#   W[b, m, n] = select(P[b, m, n] == 0.0, 0.0, P[b, m, n] / Z[b, m])

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def softmax(X_ptr, W_ptr):
    pid = tl.program_id(0)
    m = pid % 512
    b = pid // 512
    R = tl.full((), LOWEST, tl.float32)
    for n_start in range(0, 256, 128):
        n = n_start + tl.arange(0, 128)
        X = tl.load(X_ptr + b * 131072 + m * 256 + n).to(tl.float32)
        R = tl.maximum(R, tl.max(X, 0))
    Z = tl.zeros((), tl.float32)
    # n: iteration 1 of 2
    n = tl.arange(0, 128)
    X__2 = tl.load(X_ptr + b * 131072 + m * 256 + n).to(tl.float32)
    P_0 = tl.exp(X__2 - R)
    Z += tl.sum(P_0, 0)
    # n: iteration 2 of 2
    n = 128 + tl.arange(0, 128)
    X__2 = tl.load(X_ptr + b * 131072 + m * 256 + n).to(tl.float32)
    P_1 = tl.exp(X__2 - R)
    Z += tl.sum(P_1, 0)
    # n: iteration 1 of 2
    n = tl.arange(0, 128)
    W = tl.where(P_0 == 0.0, 0.0, P_0 / Z)
    tl.store(W_ptr + b * 131072 + m * 256 + n, W.to(tl.float16))
    # n: iteration 2 of 2
    n = 128 + tl.arange(0, 128)
    W = tl.where(P_1 == 0.0, 0.0, P_1 / Z)
    tl.store(W_ptr + b * 131072 + m * 256 + n, W.to(tl.float16))
