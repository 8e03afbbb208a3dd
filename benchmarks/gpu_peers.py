"""The peers of `benchmarks/gpu.py`, by torch: each computes a workload on given tensors.

Run as `python gpu_peers.py SUITE NAME [PEER ..]`, it compiles what torch.compile makes of a
workload into torch's cache, so that many compile side by side; timings of their tuners wait for the
GPU's lease.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import torch
import torch.nn.functional as F
from cuda.core import Device
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gpu_workloads import EPSILON, Attention, Workload, workloads
from mcfuser.measure.lease import lease

Tensor = torch.Tensor
Run = Callable[[], Tensor]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip
MODE = "max-autotune-no-cudagraphs"
"""Everything is captured into a graph here, so torch.compile need not."""


def inputs(w: Workload, seed: int) -> dict[str, Tensor]:
    """Fresh normal values on the GPU; the slopes of ALiBi as its paper has them."""
    torch.manual_seed(seed)
    made = {}
    for name in w.chain.inputs:
        shape, dtype = w.chain.shape(name), DTYPES[w.chain.tensor(name).dtype]
        made[name] = torch.randn(shape, dtype=dtype, device="cuda")
    if w.attention is not None and w.attention.slopes:
        steps = torch.arange(1, w.attention.heads + 1, device="cuda")
        made["a"] = torch.exp2(-8.0 * steps / w.attention.heads).half().view(made["a"].shape)
    return made


def peers(w: Workload, x: Mapping[str, Tensor]) -> dict[str, Run]:
    """By name; what does not support the workload raises when it is run."""
    tensors = list(_shaped(w, x).values())
    found = {"torch.compile": _compiled(partial(plain, w), tensors)}
    if w.family == "gemm":
        return found | _cublas(*tensors, batched=list(x.values()))
    if w.attention is None:
        return found | {"torch": partial(plain, w, *tensors)}
    return found | _attentions(w.attention, *tensors)


def compiled(made: Mapping[str, Run]) -> dict[str, Run]:
    """Those of the peers that a compiler makes."""
    return {n: run for n, run in made.items() if n in ("torch.compile", "FlexAttention")}


def reference(w: Workload, x: Mapping[str, Tensor]) -> Tensor:
    """What the workload should compute, in float64; for attention head by head."""
    tensors = [t.double() for t in _shaped(w, x).values()]
    shape, a = w.chain.shape(w.chain.outputs[0]), w.attention
    if a is None:
        return plain(w, *tensors).view(shape)
    one, (q, k, v, *slopes) = replace(a, heads=1, groups=1), tensors
    heads = [
        _attention(one, q[:, [i]], k[:, [i // a.groups]], v[:, [i // a.groups]],
                   *(s[[i]] for s in slopes)) for i in range(a.heads)
    ]  # fmt: skip
    return torch.cat(heads, 1).view(shape)


def plain(w: Workload, *x: Tensor) -> Tensor:
    """The workload as a user writes it, on tensors as `_shaped` shapes them."""
    if w.family == "gemm":
        a, b, d = x
        return a @ b @ d
    if w.attention is not None:
        return _attention(w.attention, *x)
    wide = x[0] if x[0].dtype == torch.float64 else x[0].float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    norm = (wide * scale * x[1]).to(x[0].dtype)
    if w.family == "projection":
        return norm @ x[2]
    return F.silu(norm @ x[2]) * (norm @ x[3])


def _shaped(w: Workload, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views as torch's users have them: matrices where the batch is 1, and attention's tensors as
    [1, heads, positions, depth]."""
    if w.family == "gemm":
        return {n: t[0] if t.shape[0] == 1 else t for n, t in x.items()}
    if w.attention is None:
        return dict(x)
    return {n: t.flatten() if n == "a" else t.reshape(1, -1, *t.shape[-2:]) for n, t in x.items()}


def _compiled(function: Callable[..., Tensor], tensors: list[Tensor]) -> Run:
    return partial(torch.compile(function, fullgraph=True, dynamic=False, mode=MODE), *tensors)


def _cublas(a: Tensor, b: Tensor, d: Tensor, batched: list[Tensor]) -> dict[str, Run]:
    """Two products into tensors that are there: as matrices and, in a batch of 1, batched."""

    def two(a: Tensor, b: Tensor, d: Tensor) -> Run:
        c = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype, device="cuda")
        e = torch.empty(*a.shape[:-1], d.shape[-1], dtype=a.dtype, device="cuda")

        def run() -> Tensor:
            torch.matmul(a, b, out=c)
            return torch.matmul(c, d, out=e)

        return run

    return {"cuBLAS": two(a, b, d), "cuBLAS batched": two(*batched)}


# --- attention ------------------------------------------------------------------------------


def _attention(t: Attention, q: Tensor, k: Tensor, v: Tensor, *slopes: Tensor) -> Tensor:
    if t.groups > 1:
        k, v = k.repeat_interleave(t.groups, 1), v.repeat_interleave(t.groups, 1)
    s = q @ k.transpose(-1, -2) * t.depth**-0.5
    if t.cap is not None:
        s = t.cap * torch.tanh(s / t.cap)
    row = torch.arange(t.keys - t.rows, t.keys, device=q.device)[:, None]
    column = torch.arange(t.keys, device=q.device)[None]
    if slopes:
        s = s - slopes[0][:, None, None] * (row - column)
    if t.masked:
        inside = column <= row
        if t.window is not None:
            inside = inside & (row < column + t.window)
        s = s.masked_fill(~inside, float("-inf"))
    return torch.softmax(s, -1) @ v


def _attentions(t: Attention, q: Tensor, k: Tensor, v: Tensor, *slopes: Tensor) -> dict[str, Run]:
    """SDPA by every backend where it can say the operator, and FlexAttention."""
    found: dict[str, Run] = {}
    if not slopes and t.cap is None and t.window is None:
        for name, backend in BACKENDS.items():
            found[name] = partial(_sdpa, backend, t, q, k, v)
    flex = cache(partial(_flex, t, q, k, v, *slopes))  # made where a failure is told as others are
    return found | {"FlexAttention": lambda: flex()()}


def _sdpa(backend: SDPBackend, t: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel([backend]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=t.masked, enable_gqa=t.groups > 1)


def _flex(t: Attention, q: Tensor, k: Tensor, v: Tensor, *slopes: Tensor) -> Run:
    first = t.keys - t.rows

    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        if t.cap is not None:
            s = t.cap * torch.tanh(s / t.cap)
        return s - slopes[0][h] * (m + first - n) if slopes else s

    def inside(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return (n <= m) & (m < n + t.window) if t.window is not None else n <= m

    mask = create_block_mask(inside, None, None, t.rows, t.keys) if t.masked else None
    changed = score if slopes or t.cap is not None else None
    called = partial(flex_attention, score_mod=changed, block_mask=mask, enable_gqa=t.groups > 1)
    return _compiled(called, [q, k, v])


# --- compiling ahead ------------------------------------------------------------------------


def _leased() -> None:
    """Lets torch's tuners time one after the other, and never beside mcfuser's measurements."""
    from torch._inductor.runtime.benchmarking import benchmarker

    alone = benchmarker.benchmark_gpu
    resource = f"gpu-{Device(0).uuid}"

    def benchmark_gpu(*given: object, **named: object) -> object:
        with lease(resource, exclusive=True):
            return alone(*given, **named)

    benchmarker.benchmark_gpu = benchmark_gpu


def main() -> None:
    _leased()
    w, wanted = workloads(sys.argv[1])[sys.argv[2]], sys.argv[3:]
    with torch.no_grad():
        for name, run in compiled(peers(w, inputs(w, 0))).items():
            if not wanted or name in wanted:
                run()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
