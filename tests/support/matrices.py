"""Products of a matrix with a constant one."""

from __future__ import annotations

from mcfuser.chain import Chain, from_json


def matrix(m: int, n: int, k: int, dtype: str = "float32", constant: bool = True) -> Chain:
    """C = A B, where B is stored in a type: bytes are multiplied with bytes without a sign."""
    left = "uint8" if dtype == "int8" else "float32"
    tensors = {
        "A": {"shape": ["m", "k"], "dtype": left},
        "B": {"shape": ["k", "n"], "dtype": dtype, "constant": constant},
    }
    lines = ["C[m, n] = sum[k] float32(A[m, k]) * float32(B[k, n])"]
    return from_json({"axes": {"m": m, "n": n, "k": k}, "tensors": tensors, "operators": lines})
