"""What `benchmarks/gpu.py` measures: chains, and what their peers must know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mcfuser.chain import Chain, from_json, from_text
from workloads import ATTENTION, GEMM


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
    made = [_gemm(n, "G", w) for n, w in GEMM.items()]
    return made + [_plain(name, "S", words) for name, words in ATTENTION.items()]


def _gemm(name: str, group: str, words: str, dtype: str = "float16") -> Workload:
    return Workload(name, group, "gemm", from_text(words, dtype))


def _plain(name: str, group: str, words: str, dtype: str = "float16") -> Workload:
    """Attention without a mask, every head with keys of its own."""
    heads, rows, keys, depth, width = (int(x) for x in words.partition(":")[2].split(","))
    known = Attention(heads, rows, keys, depth=depth, width=width)
    return Workload(name, group, "attention", from_text(words, dtype), known)


# --- norms at the sizes of Llama ------------------------------------------------------------

ROWS = (1, 16, 512)
EPSILON = 1e-5


def _norms(hidden: int = 4096, inner: int = 14336, rows: Sequence[int] = ROWS) -> list[Workload]:
    """In bfloat16, as such models run: products of two projections overflow float16."""
    norm = ["Q[m] = sum[k] X[m, k] * X[m, k]",
            f"N[m, k] = X[m, k] / sqrt(Q[m] / {hidden}.0 + {EPSILON}) * g[k]"]  # fmt: skip
    gate = [f"{out}[m, n] = sum[k] bfloat16(N[m, k]) * {w}[k, n]" for out, w in ("GW", "UV")]
    gated = [*norm, *gate, "Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]"]
    plain = [*norm, "Y[m, n] = sum[k] bfloat16(N[m, k]) * W[k, n]"]
    made = []
    for m in rows:
        shapes = {"X": "mk", "g": "k", "W": "kn"}
        made.append(Workload(f"norm-projection {m}", "norms", "projection", _chain(
            f"norm_projection_{m}", {"m": m, "n": hidden, "k": hidden}, shapes, "Y", "mn", plain,
            "bfloat16")))  # fmt: skip
        made.append(Workload(f"norm-swiglu {m}", "norms", "swiglu", _chain(
            f"norm_swiglu_{m}", {"m": m, "n": inner, "k": hidden}, shapes | {"V": "kn"}, "Y", "mn",
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


def _of(name: str, a: Attention, dtype: str = "float16") -> Workload:
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
    weight = "P[b, g, m, n]" if dtype == "float32" else f"{dtype}(P[b, g, m, n])"
    lines = [
        "S[b, g, m, n] = sum[k] Q[b, g, m, k] * K[b, n, k]",
        f"X[b, g, m, n] = {score}",
        f"R[b, g, m] = max[n] X[b, g, m, n]{inside}",
        "P[b, g, m, n] = exp(X[b, g, m, n] - R[b, g, m])",
        f"Z[b, g, m] = sum[n] P[b, g, m, n]{inside}",
        f"U[b, g, m, h] = sum[n] {weight} * V[b, n, h]{inside}",
        "O[b, g, m, h] = U[b, g, m, h] / Z[b, g, m]",
    ]
    text = name.replace(" ", "_").replace("-", "_")
    chain = _chain(text, extents, shapes, "O", "bgmh", lines, dtype)
    return Workload(name, "neptune", "attention", chain, a)


def _chain(
    name: str, axes: Mapping[str, int], shapes: Mapping[str, str], out: str, kept: str,
    lines: list[str], dtype: str,
) -> Chain:  # fmt: skip
    tensors = {t: {"shape": list(s), "dtype": dtype} for t, s in {**shapes, out: kept}.items()}
    return from_json({"name": name, "axes": dict(axes), "tensors": tensors, "operators": lines})


# --- sizes that models have and the papers' tables do not ------------------------------------

PRODUCTS = {
    "12 x 197": "gemm:12,197,197,64,64", "4 x 577": "gemm:4,577,577,64,64",
    "1000": "gemm:1,1000,1000,200,72", "300 x 700": "gemm:1,300,700,100,50",
    "16 x 384": "gemm:16,384,384,96,96", "768 x 3072": "gemm:1,768,3072,128,128",
}  # fmt: skip
PLAIN = {
    "ViT-B": "attention:12,197,197,64,64", "8 x ViT-B": "attention:96,197,197,64,64",
    "ViT-L": "attention:16,257,257,64,64", "CLIP-L": "attention:16,577,577,64,64",
    "DINOv2-B": "attention:12,1370,1370,64,64", "Swin": "attention:192,49,49,32,32",
    "BERT-B 384": "attention:12,384,384,64,64", "Whisper-L": "attention:20,1500,1500,64,64",
    "SAM-H": "attention:16,4096,4096,80,80", "UNet 1024": "attention:16,1024,1024,80,80",
    "UNet 4096": "attention:8,4096,4096,40,40", "UNet text": "attention:8,4096,77,40,40",
}  # fmt: skip
SHARED = Attention(32, 0, 0, 4, causal=True)
WIDE = Attention(16, 0, 0, 2, depth=256, width=256, causal=True, cap=50.0)
MASKED = {
    "CLIP text": Attention(12, 77, 77, depth=64, width=64, causal=True),
    "shared 333": replace(SHARED, rows=333, keys=333),
    "shared 1000": replace(SHARED, rows=1000, keys=1000),
    "shared decode 777": replace(SHARED, rows=1, keys=777),
    "shared decode 4097": replace(SHARED, rows=1, keys=4097),
    "window 1111": replace(SHARED, rows=1111, keys=1111, window=1024),
    "wide 1024": replace(WIDE, rows=1024, keys=1024),
    "wide decode 4096": replace(WIDE, rows=1, keys=4096),
}


def _shapes() -> list[Workload]:
    """Extents that are prime or no power of two, heads of 32 to 256, few rows of narrow norms."""
    made = [_gemm(n, "products", w) for n, w in PRODUCTS.items()]
    made += [_plain(n, "attention", w) for n, w in PLAIN.items()]
    made += [replace(_of(n, a), group="masked attention") for n, a in MASKED.items()]
    return made + _norms(2048, 5632, (4, 100))


# --- float32 --------------------------------------------------------------------------------


def _float32() -> list[Workload]:
    """The tables' chains as exporters write them, and what a decoder does with one row."""
    made = [_gemm(n, "products", w, "float32") for n, w in GEMM.items()]
    made += [_plain(n, "attention", w, "float32") for n, w in ATTENTION.items()]
    for name, a in (("shared", PREFILL["gqa"]), ("own", PREFILL["causal"])):
        made += [replace(_of(f"{name} keys decode {n}", replace(a, rows=1, keys=n), "float32"),
                         group="decode") for n in (512, 2048)]  # fmt: skip
    return made


SUITES = {"tables": _tables, "norms": _norms, "neptune": _neptune, "shapes": _shapes,
          "float32": _float32}  # fmt: skip


def workloads(suite: str) -> dict[str, Workload]:
    """A suite's workloads by name."""
    return {w.name: w for w in SUITES[suite]()}
