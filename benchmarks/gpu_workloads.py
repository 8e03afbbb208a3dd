"""What `benchmarks/gpu.py` measures: chains, and what their peers must know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mcfuser.bench.workloads import ATTENTION, GEMM
from mcfuser.chain import Chain, from_json, from_text


@dataclass(frozen=True)
class Attention:
    """softmax(Q K^T / sqrt(k) ..) V: `groups` query heads share a key head. In decoding, `rows` is
    1 and the row is the last position, so a causal mask leaves everything."""

    heads: int
    rows: int
    keys: int
    groups: int = 1
    depth: int = 128
    width: int = 128
    causal: bool = False
    window: int | None = None
    slopes: bool = False
    cap: float | None = None

    @property
    def masked(self) -> bool:
        return self.causal and self.rows > 1


Family = Literal["gemm", "attention", "projection", "swiglu"]


@dataclass(frozen=True)
class Workload:
    """A chain with its name in tables, where `group` is the row's table."""

    name: str
    group: str
    family: Family
    chain: Chain
    attention: Attention | None = None


def _tables() -> list[Workload]:
    """Tables II and III of the paper."""
    made = [Workload(n, "G", "gemm", from_text(w, "float16")) for n, w in GEMM.items()]
    for name, words in ATTENTION.items():
        heads, rows, keys, depth, width = (int(x) for x in words.partition(":")[2].split(","))
        known = Attention(heads, rows, keys, depth=depth, width=width)
        made.append(Workload(name, "S", "attention", from_text(words, "float16"), known))
    return made


# --- norms at the sizes of Llama ------------------------------------------------------------

HIDDEN, INNER, ROWS = 4096, 14336, (1, 16, 512)
EPSILON = 1e-5


def _norms() -> list[Workload]:
    """In bfloat16, as such models run: products of two projections overflow float16."""
    norm = ["Q[m] = sum[k] X[m, k] * X[m, k]",
            f"N[m, k] = X[m, k] / sqrt(Q[m] / {HIDDEN}.0 + {EPSILON}) * g[k]"]  # fmt: skip
    gate = [f"{out}[m, n] = sum[k] bfloat16(N[m, k]) * {w}[k, n]" for out, w in ("GW", "UV")]
    gated = [*norm, *gate, "Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]"]
    plain = [*norm, "Y[m, n] = sum[k] bfloat16(N[m, k]) * W[k, n]"]
    made = []
    for m in ROWS:
        shapes = {"X": "mk", "g": "k", "W": "kn"}
        made.append(Workload(f"norm-projection {m}", "norms", "projection", _chain(
            f"norm_projection_{m}", {"m": m, "n": HIDDEN, "k": HIDDEN}, shapes, "Y", "mn", plain,
            "bfloat16")))  # fmt: skip
        made.append(Workload(f"norm-swiglu {m}", "norms", "swiglu", _chain(
            f"norm_swiglu_{m}", {"m": m, "n": INNER, "k": HIDDEN}, shapes | {"V": "kn"}, "Y", "mn",
            gated, "bfloat16")))  # fmt: skip
    return made


# --- the operators of Neptune's Table 1 -----------------------------------------------------

TOKENS = (512, 2048, 8192)
PREFILL = {
    "global": Attention(16, 0, 0, depth=64, width=64),
    "causal": Attention(32, 0, 0, causal=True),
    "alibi": Attention(32, 0, 0, causal=True, slopes=True),
    "gqa": Attention(64, 0, 0, 8, causal=True),
    "soft-cap": Attention(32, 0, 0, 2, causal=True, cap=50.0),
    "window": Attention(32, 0, 0, causal=True, window=256),
}


def _neptune() -> list[Workload]:
    """Ten operators, each at 512, 2048 and 8192 tokens."""
    made = []
    for tokens in TOKENS:
        for name, base in PREFILL.items():
            made.append(_of(f"{name} {tokens}", replace(base, rows=tokens, keys=tokens)))
        for name in ("causal", "alibi", "gqa", "soft-cap"):
            made.append(_of(f"{name} decode {tokens}", replace(PREFILL[name], rows=1, keys=tokens)))
    return made


def _of(name: str, a: Attention) -> Workload:
    key_heads = a.heads // a.groups
    extents = {"b": key_heads, "g": a.groups, "m": a.rows, "n": a.keys, "k": a.depth, "h": a.width}
    shapes = {"Q": "bgmk", "K": "bnk", "V": "bnh"} | ({"a": "bg"} if a.slopes else {})
    score = f"S[b, g, m, n] * {a.depth**-0.5!r}"
    if a.cap is not None:
        score = f"{a.cap} * tanh({score} / {a.cap})"
    if a.slopes:
        row = "m" if a.rows > 1 else f"{a.keys - 1}"
        score += f" - a[b, g] * ({row} - n)"
    inside = " where n <= m" if a.masked else ""
    if a.window is not None:
        inside += f" and m < n + {a.window}"
    lines = [
        "S[b, g, m, n] = sum[k] Q[b, g, m, k] * K[b, n, k]",
        f"X[b, g, m, n] = {score}",
        f"R[b, g, m] = max[n] X[b, g, m, n]{inside}",
        "P[b, g, m, n] = exp(X[b, g, m, n] - R[b, g, m])",
        f"Z[b, g, m] = sum[n] P[b, g, m, n]{inside}",
        f"U[b, g, m, h] = sum[n] float16(P[b, g, m, n]) * V[b, n, h]{inside}",
        "O[b, g, m, h] = U[b, g, m, h] / Z[b, g, m]",
    ]
    text = name.replace(" ", "_").replace("-", "_")
    chain = _chain(text, extents, shapes, "O", "bgmh", lines, "float16")
    return Workload(name, "neptune", "attention", chain, a)


def _chain(
    name: str, axes: Mapping[str, int], shapes: Mapping[str, str], out: str, kept: str,
    lines: list[str], dtype: str,
) -> Chain:  # fmt: skip
    tensors = {t: {"shape": list(s), "dtype": dtype} for t, s in {**shapes, out: kept}.items()}
    return from_json({"name": name, "axes": dict(axes), "tensors": tensors, "operators": lines})


SUITES = {"tables": _tables, "norms": _norms, "neptune": _neptune}


def workloads(suite: str) -> dict[str, Workload]:
    """A suite's workloads by name."""
    return {w.name: w for w in SUITES[suite]()}
