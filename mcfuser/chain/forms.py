"""The short forms of chains, with the letters of MCFuser's Tables II and III."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from mcfuser.chain.document import parse_operator
from mcfuser.chain.values import Axis, Chain, Tensor
from mcfuser.errors import ChainError

_EXTENT = re.compile(r"\s*[0-9]{1,12}\s*")


def gemm(batch: int, m: int, n: int, k: int, h: int, dtype: str = "float32") -> Chain:
    """The paper's GEMM chain C = A x B, E = C x D, with Table II's letters; tensors are `dtype`."""
    extents = {"b": batch, "m": m, "n": n, "k": k, "h": h}
    c = f"{dtype}(C[b, m, n])" if dtype != "float32" else "C[b, m, n]"
    return _build(
        f"gemm:{batch},{m},{n},{k},{h}",
        extents,
        dtype,
        {"A": "bmk", "B": "bkn", "D": "bnh"},
        {"E": "bmh"},
        ["C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]", f"E[b, m, h] = sum[n] {c} * D[b, n, h]"],
    )


def attention(heads: int, m: int, n: int, k: int, h: int, dtype: str = "float32") -> Chain:
    """Attention, softmax(Q K^T / sqrt(k)) V, with Table III's letters; tensors are `dtype`."""
    extents = {"b": heads, "m": m, "n": n, "k": k, "h": h}
    p = f"{dtype}(P[b, m, n])" if dtype != "float32" else "P[b, m, n]"
    return _build(
        f"attention:{heads},{m},{n},{k},{h}",
        extents,
        dtype,
        {"Q": "bmk", "K": "bnk", "V": "bnh"},
        {"O": "bmh"},
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            f"X[b, m, n] = S[b, m, n] * {1 / math.sqrt(k)!r}",
            "R[b, m] = max[n] X[b, m, n]",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m])",
            "Z[b, m] = sum[n] P[b, m, n]",
            f"U[b, m, h] = sum[n] {p} * V[b, n, h]",
            "O[b, m, h] = U[b, m, h] / Z[b, m]",
        ],
    )


def _build(
    name: str,
    extents: Mapping[str, int],
    dtype: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    lines: Sequence[str],
) -> Chain:
    operators = tuple(parse_operator(line) for line in lines)
    given = {**inputs, **outputs}
    tensors = [Tensor(t, tuple(axes), dtype) for t, axes in given.items()]
    tensors += [Tensor(o.out, o.axes) for o in operators if o.out not in given]
    return Chain(
        name,
        tuple(Axis(a, e) for a, e in extents.items()),
        tuple(tensors),
        operators,
        tuple(outputs),
    )


def from_text(words: str, dtype: str = "float32") -> Chain:
    """The chain of a short form: `gemm:batch,M,N,K,H` or `attention:heads,M,N,K,H`.

    Raises ChainError, naming the known forms, for any other text or dtype.
    """
    kind, _, numbers = words.partition(":")
    forms = {"gemm": gemm, "attention": attention}
    extents = numbers.split(",")
    if kind not in forms or len(extents) != 5 or not all(map(_EXTENT.fullmatch, extents)):
        raise ChainError(
            f"chain '{words[:80]}' is neither gemm:batch,M,N,K,H nor attention:heads,M,N,K,H; "
            "give a JSON file for any other"
        )
    if dtype not in ("float16", "bfloat16", "float32"):
        raise ChainError(f"dtype '{dtype}' is not one of float16, bfloat16 and float32")
    b, m, n, k, h = (int(x) for x in extents)
    return forms[kind](b, m, n, k, h, dtype)
