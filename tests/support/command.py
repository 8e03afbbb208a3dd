"""The command in a process of its own, with few rounds of timing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def mcfuser(*words: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.hasty_command", *words],
        capture_output=True, text=True, env={**os.environ, "MCFUSER_DATA": str(data)}, check=False,
        cwd=ROOT,
    )  # fmt: skip
