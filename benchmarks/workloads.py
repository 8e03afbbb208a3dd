"""The paper's workloads (MCFuser Tables II and III), and those whose landscapes are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mcfuser.chain import Chain, from_json, from_text

GEMM: Mapping[str, str] = {
    f"G{i}": f"gemm:{sizes}"
    for i, sizes in enumerate(
        ("1,512,256,64,64", "1,512,256,64,128", "1,512,256,64,256", "1,512,512,256,256",
         "1,512,512,512,256", "1,512,512,1024,256", "1,512,512,128,128", "1,1024,512,128,128",
         "1,2048,512,128,128", "1,1024,1024,128,128", "4,1024,1024,128,128",
         "8,1024,1024,128,128"), 1)
}  # fmt: skip
"""Table II, as batch, M, N, K, H."""

ATTENTION: Mapping[str, str] = {
    f"S{i}": f"attention:{sizes}"
    for i, sizes in enumerate(
        ("8,512,512,64,64", "12,512,512,64,64", "16,512,512,64,64", "12,256,256,64,64",
         "16,256,256,64,64", "16,256,256,80,80", "1,512,256,64,64", "1,768,384,64,64",
         "1,1024,512,64,64"), 1)
}  # fmt: skip
"""Table III, as heads, M, N, K, H."""

PAPER: Mapping[str, str] = {**GEMM, **ATTENTION}


def _product(m: int, n: int, k: int) -> Chain:
    """A layer of a language model."""
    return _chain(
        f"product:{m},{n},{k}", {"m": m, "n": n, "k": k}, {"X": "mk", "W": "kn"}, {"Y": "mn"},
        "bfloat16", ["Y[m, n] = sum[k] X[m, k] * W[k, n]"],
    )  # fmt: skip


def _with_epilogue(shape: tuple[int, ...], n: int, k: int, epilogue: str) -> Chain:
    """A product of rows of `shape` by its weights, plus its bias `F`, and what follows it: nothing,
    GELU, or a gate `G` for each batch and what it is added to, as in a diffusion transformer."""
    axes, rows = dict(zip("mi", shape, strict=False)), "mi"[: len(shape)]
    at = ", ".join(rows)
    x = f"(C[{at}, n] + float32(F[n]))"
    wide = f"{x} + 0.044715 * {x} * {x} * {x}"
    inputs, made = {"A": f"{rows}k", "B": "kn", "F": "n"}, x
    match epilogue:
        case "gelu":
            made = f"0.5 * {x} * (1.0 + tanh(0.7978845608028654 * ({wide})))"
        case "gate":
            inputs |= {"G": "mn", "H": f"{rows}n"}
            made = f"float32(H[{at}, n]) + float32(G[m, n]) * {x}"
    return _chain(
        f"{epilogue or 'bias'}:{','.join(map(str, (*shape, n, k)))}", {**axes, "n": n, "k": k},
        inputs, {"E": f"{rows}n"}, "float16",
        [f"C[{at}, n] = sum[k] A[{at}, k] * B[k, n]", f"E[{at}, n] = {made}"],
    )  # fmt: skip


def _joint(batch: int, heads: int, n: int, width: int) -> Chain:
    """Attention of positions whose heads lie beside each other."""
    lines = [
        "C[b, a, m, n] = sum[k] A[b, m, a, k] * B[b, n, a, k]",
        f"X[b, a, m, n] = C[b, a, m, n] * {width**-0.5!r}", "R[b, a, m] = max[n] X[b, a, m, n]",
        "P[b, a, m, n] = exp(X[b, a, m, n] - R[b, a, m])", "Z[b, a, m] = sum[n] P[b, a, m, n]",
        "W[b, a, m, n] = P[b, a, m, n] / Z[b, a, m]",
        "E[b, m, a, h] = sum[n] float16(W[b, a, m, n]) * D[b, n, a, h]",
    ]  # fmt: skip
    return _chain(
        f"joint:{batch},{heads},{n},{width}",
        {"b": batch, "a": heads, "m": n, "n": n, "k": width, "h": width},
        {"A": "bmak", "B": "bnak", "D": "bnah"}, {"E": "bmah"}, "float16", lines,
    )  # fmt: skip


def _normed(m: int, n: int, k: int, gated: bool) -> Chain:
    """RMSNorm, then a projection or both of SwiGLU's."""
    norm = ["Q[m] = sum[k] X[m, k] * X[m, k]",
            f"N[m, k] = X[m, k] / sqrt(Q[m] / {k}.0 + 1e-05) * g[k]"]  # fmt: skip
    outs = (("G", "W"), ("U", "V")) if gated else (("Y", "W"),)
    lines = [f"{out}[m, n] = sum[k] bfloat16(N[m, k]) * {w}[k, n]" for out, w in outs]
    if gated:
        lines.append("Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]")
    inputs = {"X": "mk", "g": "k", **{w: "kn" for _, w in outs}}
    return _chain(
        f"norm-{'swiglu' if gated else 'projection'}:{m},{n},{k}", {"m": m, "n": n, "k": k},
        inputs, {"Y": "mn"}, "bfloat16", norm + lines,
    )  # fmt: skip


def _grouped(heads: int, groups: int, m: int, n: int, domain: str = "", cap: bool = False) -> Chain:
    """Attention of width 128 where `groups` query heads share a key head, inside a domain, its
    scores capped softly at 50 or not."""
    inside = f" where {domain}" if domain else ""
    score = f"S[b, g, m, n] * {128**-0.5!r}"
    score = f"50.0 * tanh({score} / 50.0)" if cap else score
    return _chain(
        f"attention:{heads}x{groups},{m},{n}{inside}{' capped' if cap else ''}",
        {"b": heads, "g": groups, "m": m, "n": n, "k": 128, "h": 128},
        {"Q": "bgmk", "K": "bnk", "V": "bnh"}, {"O": "bgmh"}, "float16",
        ["S[b, g, m, n] = sum[k] Q[b, g, m, k] * K[b, n, k]",
         f"X[b, g, m, n] = {score}",
         f"R[b, g, m] = max[n] X[b, g, m, n]{inside}",
         "P[b, g, m, n] = exp(X[b, g, m, n] - R[b, g, m])",
         f"Z[b, g, m] = sum[n] P[b, g, m, n]{inside}",
         f"U[b, g, m, h] = sum[n] float16(P[b, g, m, n]) * V[b, n, h]{inside}",
         "O[b, g, m, h] = U[b, g, m, h] / Z[b, g, m]"],
    )  # fmt: skip


def _convolution(
    batch: int, size: int, channels: int, filters: int, window: int = 3, embedded: bool = False
) -> Chain:
    """A convolution of pictures with their channels last, that keeps their size, and its bias; and
    what an embedding adds to the channels of a picture."""
    line, before = size * channels, window // 2
    padding = [
        {"dimensions": [d, d + 1], "extent": size, "stride": step, "before": before}
        for d, step in ((1, line), (3, channels))
    ]  # fmt: skip
    picture = {
        "shape": ["b", "s", "i", "t", "j", "k"], "dtype": "float16", "padding": padding,
        "strides": [size * line, line, line, channels, channels, 1],
    }  # fmt: skip
    filled = {"dtype": "float16", "constant": True}
    name, more, added = "convolution", {}, ""
    if embedded:
        name, added = "embedded", " + float32(G[b, n])"
        more = {"G": {"shape": ["b", "n"], "dtype": "float16"}}
    return from_json({
        "name": f"{name}:{batch},{size},{size},{channels},{filters},{window}",
        "axes": {"b": batch, "i": size, "j": size, "n": filters, "k": channels,
                 "s": window, "t": window},
        "tensors": {"A": picture, "B": {"shape": ["s", "t", "k", "n"], **filled},
                    "F": {"shape": ["n"], **filled}, **more,
                    "E": {"shape": ["b", "i", "j", "n"], "dtype": "float16"}},
        "operators": ["C[b, i, j, n] = sum[s, t, k] A[b, s, i, t, j, k] * B[s, t, k, n]",
                      f"E[b, i, j, n] = C[b, i, j, n] + float32(F[n]){added}"],
    })  # fmt: skip


def _group_sums(batch: int, positions: int, groups: int, channels: int) -> Chain:
    """The two sums of a group norm of pictures whose channels are last."""
    n = positions * channels
    apart = f"(float32(X[b, p, g, c]) - M[b, g] / {n}.0)"
    return _chain(
        f"group-sums:{batch},{positions},{groups},{channels}",
        {"b": batch, "g": groups, "c": channels, "p": positions}, {"X": "bpgc"},
        {"M": "bg", "Q": "bg"}, "float16",
        ["M[b, g] = sum[c, p] float32(X[b, p, g, c])", f"Q[b, g] = sum[c, p] {apart} * {apart}"],
    )  # fmt: skip


def _channel_sums(batch: int, positions: int, channels: int) -> Chain:
    """The two sums of a norm of each channel."""
    apart = f"(float32(X[b, p, c]) - M[b, c] / {positions}.0)"
    return _chain(
        f"channel-sums:{batch},{positions},{channels}",
        {"b": batch, "c": channels, "p": positions}, {"X": "bpc"}, {"M": "bc", "Q": "bc"},
        "float16",
        ["M[b, c] = sum[p] float32(X[b, p, c])", f"Q[b, c] = sum[p] {apart} * {apart}"],
    )  # fmt: skip


def _group_map(batch: int, positions: int, groups: int, channels: int) -> Chain:
    """What a group norm with SiLU computes of those sums."""
    n = positions * channels
    norm = f"(float32(X[b, p, g, c]) - M[b, g] / {n}.0) / sqrt(Q[b, g] / {n}.0 + 1e-05)"
    return _chain(
        f"group-map:{batch},{positions},{groups},{channels}",
        {"c": channels, "p": positions, "b": batch, "g": groups},
        {"X": "bpgc", "M": "bg", "Q": "bg"}, {"Y": "bpgc"}, "float16",
        [f"Y[b, p, g, c] = {norm} / (1.0 + exp(-({norm})))"], {"M": "float32", "Q": "float32"},
    )  # fmt: skip


def _layer_norm(m: int, n: int) -> Chain:
    return _chain(
        f"layer-norm:{m},{n}", {"m": m, "n": n}, {"X": "mn"}, {"Y": "mn"}, "float16",
        ["F[m, n] = float32(X[m, n])", "M[m] = sum[n] F[m, n]",
         f"N[m, n] = F[m, n] - M[m] / {n}.0", "Q[m] = sum[n] N[m, n] * N[m, n]",
         f"Y[m, n] = N[m, n] / sqrt(Q[m] / {n}.0 + 1e-05)"],
    )  # fmt: skip


def _scaled_norm(shape: tuple[int, ...], n: int, apart: int) -> Chain:
    """A layer norm that is scaled and shifted as a diffusion transformer does, by vectors `F` and
    `H`; of several pictures (the first of two extents), each by rows of its own, which lie `apart`.
    """
    axes, rows = dict(zip("mi", shape, strict=False)), "mi"[: len(shape)]
    at, own = ", ".join(rows), rows[:-1]
    scale = ", ".join([*own, "n"])
    plain = _chain(
        f"scaled-norm:{','.join(map(str, (*shape, n)))}", {**axes, "n": n},
        {"F": f"{own}n", "G": f"{rows}n", "H": f"{own}n"}, {"E": f"{rows}n"}, "float16",
        [f"X[{at}, n] = float32(G[{at}, n])", f"M[{at}] = sum[n] X[{at}, n]",
         f"N[{at}, n] = X[{at}, n] - M[{at}] / {n}.0", f"Q[{at}] = sum[n] N[{at}, n] * N[{at}, n]",
         f"E[{at}, n] = N[{at}, n] / sqrt(Q[{at}] / {n}.0 + 1e-06)"
         f" * (float32(F[{scale}]) + 1.0) + float32(H[{scale}])"],
    )  # fmt: skip
    strides = (apart, 1)[-len(own) - 1 :]
    tensors = (replace(t, strides=strides) if t.name in "FH" else t for t in plain.tensors)
    return replace(plain, tensors=tuple(tensors))


def _softmax(m: int, n: int) -> Chain:
    return _chain(
        f"softmax:{m},{n}", {"m": m, "n": n}, {"X": "mn"}, {"Y": "mn"}, "float16",
        ["R[m] = max[n] float32(X[m, n])", "P[m, n] = exp(float32(X[m, n]) - R[m])",
         "Z[m] = sum[n] P[m, n]", "Y[m, n] = P[m, n] / Z[m]"],
    )  # fmt: skip


def _gelu(m: int, n: int) -> Chain:
    """GELU of what a product left, with its bias."""
    x = "(float32(X[m, n]) + float32(B[n]))"
    return _chain(
        f"gelu:{m},{n}", {"m": m, "n": n}, {"X": "mn", "B": "n"}, {"Y": "mn"}, "float16",
        [f"Y[m, n] = 0.5 * {x} * (1.0 + erf({x} * 0.7071067811865476))"],
    )  # fmt: skip


def _chain(
    name: str, axes: Mapping[str, int], inputs: Mapping[str, str], outputs: Mapping[str, str],
    dtype: str, lines: list[str], other: Mapping[str, str] = MappingProxyType({}),
) -> Chain:  # fmt: skip
    """A chain whose tensors have one type, but for some that have an `other`."""
    shapes = {**inputs, **outputs}
    tensors = {t: {"shape": list(s), "dtype": other.get(t, dtype)} for t, s in shapes.items()}
    return from_json({"name": name, "axes": dict(axes), "tensors": tensors, "operators": lines})


CAUSAL = "n <= m"
GROUPED: Mapping[str, Chain] = {
    "W1": _grouped(32, 1, 512, 512, CAUSAL),
    "W2": _grouped(32, 1, 2048, 2048, CAUSAL),
    "W3": _grouped(32, 1, 8192, 8192, CAUSAL),
    "W4": _grouped(8, 8, 2048, 2048, CAUSAL),
    "W5": from_text("attention:16,2048,2048,64,64", "float16"),
    "W6": from_text("attention:16,8192,8192,64,64", "float16"),
    "W7": _grouped(32, 1, 2048, 2048, f"{CAUSAL} and m < n + 256"),
    "W8": _grouped(16, 2, 2048, 2048, CAUSAL, cap=True),
}
"""Attention whose candidates with warp groups are measured, and no others."""

LANDSCAPES: Mapping[str, Chain] = {
    **{n: from_text(PAPER[n], "float16")
       for n in ("G1", "G2", "G3", "G4", "G6", "G10", "S1", "S4", "S6", "S9")},
    "D1": from_text("attention:64,1,2048,128,128", "float16"),
    "D2": _grouped(8, 8, 1, 8192),
    "D3": _grouped(32, 1, 1, 4096),
    "L1": from_text("attention:32,1024,1024,128,128", "float16"),
    "L2": GROUPED["W2"],
    "L3": GROUPED["W7"],
    "L4": _grouped(8, 4, 1024, 1024, CAUSAL),
    "L5": _joint(2, 24, 1178, 64),
    "P1": _product(512, 4096, 4096),
    "P2": _product(16, 4096, 4096),
    "P3": _product(512, 4096, 14336),
    "P4": _with_epilogue((2, 1024), 1536, 6144, "gate"),
    "P5": _with_epilogue((2048,), 6144, 1536, "gelu"),
    "P6": _with_epilogue((2,), 9216, 1536, ""),
    "P7": _with_epilogue((2, 154), 1536, 6144, "gate"),
    "N1": _normed(16, 4096, 4096, gated=False),
    "N2": _normed(16, 14336, 4096, gated=True),
    "N3": _normed(32, 4096, 4096, gated=False),
    "N4": _normed(64, 4096, 2048, gated=True),
    "C1": _convolution(2, 64, 320, 320),
    "C2": _convolution(2, 32, 640, 640),
    "C3": _convolution(2, 16, 1280, 1280),
    "C4": _convolution(2, 8, 1280, 1280),
    "C5": _convolution(8, 56, 64, 64),
    "C6": _convolution(2, 8, 1280, 1280, embedded=True),
    "C7": _convolution(2, 16, 2560, 1280, embedded=True),
    "R1": _group_sums(2, 4096, 32, 10),
    "R2": _group_sums(2, 1024, 32, 20),
    "R3": _group_sums(2, 256, 32, 40),
    "R4": _group_sums(2, 64, 32, 40),
    "R5": _group_sums(2, 4096, 32, 20),
    "R6": _group_sums(2, 64, 32, 80),
    "R7": _layer_norm(8192, 320),
    "R8": _layer_norm(512, 1280),
    "R9": _softmax(4096, 77),
    "R10": _channel_sums(2, 4096, 320),
    "R11": _channel_sums(2, 1024, 640),
    "R12": _channel_sums(2, 256, 1280),
    "R13": _scaled_norm((2, 154), 1536, 107520),
    "R14": _scaled_norm((2, 1024), 1536, 107520),
    "R15": _scaled_norm((1280,), 1536, 1536),
    "R16": _scaled_norm((2, 256), 1152, 82944),
    "M1": _group_map(2, 4096, 32, 10),
    "M2": _group_map(2, 256, 32, 40),
    "M3": _gelu(2048, 5120),
    **GROUPED,
}  # fmt: skip
"""D: decode steps, one query row a head; in D2, 8 heads share their keys. L: longer sequences, all
of it, causal, a causal window, heads that share keys, a length of no whole tiles. P: single
products, with epilogues from P4 on. N: products of rows that are normed first. W: warp groups.
C: convolutions of 3 x 3. R: reductions of no product, from R13 on with scales by row. M: maps."""
