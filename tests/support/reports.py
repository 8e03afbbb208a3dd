"""The report of a compilation that nobody made."""

from __future__ import annotations

from typing import Any

KEYS = ("ab" * 32, "cd" * 32, "ef" * 32)
"""The keys of its kernels."""


def kernel(name: str, operators: list[str], key: str = KEYS[0], **changed: Any) -> dict[str, Any]:
    """A kernel as a report has it."""
    return {
        "key": key, "chain_key": "c" * 64, "operators": operators, "expression": "mh.n",
        "tiles": {"m": 64, "n": 128}, "split": None, "parts": 1, "lowering": {"rows": 8},
        "predicted_seconds": 2e-4, "measured_seconds": 3e-4, "error": 4e-7,
        "candidates": {"space": 49152, "rule1": 16384, "rule2": 16384, "rule3": 280,
                       "distinct": 228, "lowered": 684},
        "trials": 31, "ended": "settled", "search": name, "missed": "", "stale": "",
        "conditions": {}, "failed": {}, "resources": {},
        "work": {"operations": 68026368, "bytes": 1708032, "peak": 2e11, "bandwidth": 2e10},
        **changed,
    }  # fmt: skip


def report(name: str = "layer0/attention") -> dict[str, Any]:
    """A report with a fused chain called `name`, one in two kernels, and one that is left to
    TVM; `name` is in every text that can come from a model."""
    fused = ["S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]", "R[b, m] = max[n] S[b, m, n]",
             "P[b, m, n] = exp(S[b, m, n] - R[b, m])", "Z[b, m] = sum[n] P[b, m, n]",
             "U[b, m, h] = sum[n] P[b, m, n] * V[b, n, h]",
             "O[b, m, h] = U[b, m, h] / Z[b, m]"]  # fmt: skip
    parted = ["C[m, n] = sum[k] A[m, k] * B[k, n]", "E[m, n] = F[n] + C[m, n]"]

    def chain(what: str, operators: list[str], kernels: list[Any], **more: Any) -> dict[str, Any]:
        found = {
            "name": what, "key": "d" * 64, "places": [what], "extents": {"m": 64},
            "operators": operators, "fused": False, "cut": [], "reason": f"for {what}",
            "saved_bytes": 4096, "fused_seconds": None, "unfused_seconds": None, "sure": None,
            "ratio": None, "conditions": {}, "candidate": None, "kernels": kernels,
        }  # fmt: skip
        return {**found, **more}

    chains = [
        chain(name, fused, [kernel(name, ["S", "R", "P", "Z", "U", "O"])], fused=True, cut=[6],
              places=[name, f"{name}/2"], fused_seconds=3e-4, unfused_seconds=5e-4),
        chain("mlp", parted, [kernel(name, ["C"], KEYS[1]), kernel(name, ["E"], KEYS[2])],
              cut=[1, 1], unfused_seconds=6e-4),
        chain("left", parted, []),
    ]  # fmt: skip
    step = {"name": name, "operators": {"matmul": 2, "exp": 1}, "reason": None}
    return {
        "device": "cpu", "arch": "znver4", "units": 2, "seed": 0, "times": "measured",
        "chains": chains,
        "products": [{
            "name": name, "shape": {"batch": 1, "rows": 64, "columns": 64, "depth": 64},
            "dtype": "float32", "phi": 1.5, "bound": 3.0, "mbci": True, "chain": 2,
            "reason": f"{name} follows",
        }],
        "outline": {"steps": [
            {**step, "chain": 0},
            {"chain": None, "name": name, "operators": {"reshape": 2}, "reason": f"no {name}"},
            {**step, "chain": 0}, {**step, "chain": 1}, {**step, "chain": 2},
        ], "more": 0},
        "seconds": {"tuning": 12.0, "building": 3.0}, "versions": {"mcfuser": "0.1.0"},
        "inputs": [], "outputs": [],
        "functions": [{"name": f"chain_{name}", "seconds": 6e-4, "calls": 2.0, "tuned": True},
                      {"name": "fused_reshape", "seconds": 1e-4, "calls": 1.0, "tuned": False}],
        "check": {"error": 6.1e-07, "outputs": {name: 6.1e-07}, "tolerance": 1e-4, "seed": 0},
    }  # fmt: skip
