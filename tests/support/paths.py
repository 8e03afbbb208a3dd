"""Where things of this checkout lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
GOLDEN = ROOT / "tests" / "golden"
SUPPORT = ROOT / "tests" / "support"
CHAINS = ROOT / "examples" / "chains"
LANDSCAPES = ROOT / "benchmarks" / "data" / "h200"
