"""Where things of this checkout lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES: Mapping[str, Path] = {
    "mcfuser": ROOT / "mcfuser",
    "mcfuser_db": ROOT / "db" / "mcfuser_db",
    "mcfuser_service": ROOT / "service" / "mcfuser_service",
}
"""What is installed, by the name that it is imported by."""
PYTHONPATH = os.pathsep.join(dict.fromkeys(str(folder.parent) for folder in PACKAGES.values()))
"""Where a process that a test starts finds the packages of this checkout."""
TESTS = ROOT / "tests"
FIXTURES = TESTS / "fixtures"
GOLDEN = TESTS / "golden"
SUPPORT = TESTS / "support"
CHAINS = ROOT / "examples" / "chains"
LANDSCAPES = ROOT / "benchmarks" / "data" / "h200"
