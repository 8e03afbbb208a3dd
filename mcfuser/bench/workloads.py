"""The paper's workloads (MCFuser Tables II and III), and those whose landscapes are measured."""

from __future__ import annotations

from collections.abc import Mapping

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
LANDSCAPES: Mapping[str, str] = {
    **{n: PAPER[n] for n in ("G1", "G2", "G3", "G4", "G6", "G10", "S1", "S4", "S6", "S9")},
    "D1": "attention:64,1,2048,128,128",
    "L1": "attention:32,1024,1024,128,128",
}
"""D1 is a decode step, one query row for each of 64 heads; L1 a longer sequence."""
