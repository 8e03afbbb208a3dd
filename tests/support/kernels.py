"""Tuned kernels that nobody tuned."""

from __future__ import annotations

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import from_text
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.tune.budget import Budget
from mcfuser.tune.key import cache_key
from mcfuser.tune.tuned import Tuned


def tuned(key: str = "k", chain: str = "gemm:1,64,64,32,32", device: str = "cpu") -> Tuned:
    return Tuned(
        key=key.rjust(64, "0"), chain=from_text(chain), device=device, expression="mn(k,h)",
        tiles={"m": 64, "n": 16}, lowering={"rows": 8}, source="def kernel(): ...",
        binary=b"\x00\xff binary", predicted=1e-5, measured=2e-5, error=1e-7,
        stages={"space": 100, "rule1": 10}, trials=8, failed={"too large": 2},
        launch={"name": "kernel", "packed": [["A", [0], 1, 16]], "scalars": []},
        made=cache_key(
            from_text(chain).key, CATALOGUE["nvidia/h200"], "mcfuser", True, "knobs", CUDA
        ),
        budget=Budget(8, 60.0, "trials"), missed="the nearest kept kernel differs in sources",
    )  # fmt: skip
