"""How long the space of each of the paper's 21 workloads takes, and 10,000 estimates.

Run with `python benchmarks/space.py`. Every workload runs in a process of its own, whose peak
memory is counted from before its imports.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from mcfuser.chain import from_text
from mcfuser.devices.catalogue import device_named
from mcfuser.model import analytical, roofline
from mcfuser.space.prune import distinct, parted, prune, sample, space
from workloads import PAPER

DEVICE = "nvidia/h200"
ESTIMATES = 10_000
SECONDS, MEGABYTES = 1.0, 300.0
"""What a workload may take at most; the estimates, too."""


def one(text: str) -> dict[str, float]:
    """A workload's space from its text to the candidates that a search starts from."""
    device, start = device_named(DEVICE), time.perf_counter()
    whole = space(from_text(text, "float16"))
    left, _ = prune(whole, device)
    merged = distinct(left)
    found = parted(merged, device)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    drawn = sample(found, ESTIMATES)
    for plan, tiles in drawn:
        analytical.estimate(plan, tiles, device)
    paper = time.perf_counter() - start
    start = time.perf_counter()
    for plan, tiles in drawn:
        roofline.overlapped(plan, tiles, device)
    return {
        "seconds": seconds, "mb": peak, "candidates": whole.candidates, "merged": merged.candidates,
        "found": found.candidates, "paper": paper, "roofline": time.perf_counter() - start,
    }  # fmt: skip


COLUMNS = ("candidates", "merged", "found", "seconds", "mb", "paper", "roofline")
HEADS = ("candidates", "pruned", "+ parts", "seconds", "MB", "eq. 2", "roofline")
FORMATS = (">13,", ">7,", ">8,", ">8.2f", ">5.0f", ">7.2f", ">9.2f")


def main() -> int:
    widths = [f.split(".")[0].strip("f,") for f in FORMATS]
    print(" " * 4, *(f"{h:{w}}" for h, w in zip(HEADS, widths, strict=True)))
    worst = [0.0, 0.0, 0.0]
    for name, text in PAPER.items():
        run = [sys.executable, __file__, text]
        r = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
        worst = [max(w, r[k]) for w, k in zip(worst, ("seconds", "mb", "paper"), strict=True)]
        cells = (f"{r[c]:{f}}" for c, f in zip(COLUMNS, FORMATS, strict=True))
        print(f"{name:4}", *cells, flush=True)
    print(
        f"worst: space {worst[0]:.2f} s, {worst[1]:.0f} MB; "
        f"{ESTIMATES:,} estimates by equation (2) {worst[2]:.2f} s"
    )
    return 0 if worst[0] < SECONDS and worst[1] < MEGABYTES and worst[2] < SECONDS else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1])))
    else:
        sys.exit(main())
