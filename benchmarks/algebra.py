"""How long the algebra of each example chain takes: guards, hoisting, folding, repairs.

Run with `python benchmarks/algebra.py`. Every chain has a process of its own, so nothing is cached;
SymPy's import, which the first repair of a process pays, is counted apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from mcfuser.algebra.roll import Refusal
from mcfuser.chain import from_json
from mcfuser.space.program import program

EXAMPLES = sorted((Path(__file__).parent.parent / "examples" / "chains").glob("*.json"))
SECONDS = 1.0
"""What one chain may take at most, without the import."""


def one(path: str) -> dict[str, float]:
    chain = from_json(json.loads(Path(path).read_text()))
    start = time.perf_counter()
    __import__("sympy")
    imported = time.perf_counter()
    ready = program(chain)
    cold = time.perf_counter()
    program(chain)
    refused = sum(isinstance(r, Refusal) for r in ready.rolls)
    return {
        "import": imported - start, "cold": cold - imported,
        "again": time.perf_counter() - cold, "rolls": len(ready.repairs), "refused": refused,
    }  # fmt: skip


def main() -> int:
    print(f"{'chain':32} {'rolls':>5} {'refused':>7} {'import':>7} {'cold':>7} {'again':>7}")
    worst = 0.0
    for path in EXAMPLES:
        run = [sys.executable, __file__, str(path)]
        found = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
        worst = max(worst, found["cold"])
        seconds = " ".join(f"{found[n]:7.3f}" for n in ("import", "cold", "again"))
        print(f"{path.stem:32} {found['rolls']:5} {found['refused']:7} {seconds}")
    print(f"slowest {worst:.2f} s of {SECONDS:.0f} s allowed")
    return int(worst > SECONDS)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1])))
    else:
        sys.exit(main())
