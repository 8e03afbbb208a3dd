"""Large blocks of memory are given back as they are freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROWN = """
import re
import sys
import numpy as np
from mcfuser.process.blocks import return_blocks

def resident():
    with open("/proc/self/status") as status:
        return int(re.search(r"RssAnon:\\s+(\\d+)", status.read())[1]) >> 10

if sys.argv[1] == "returned" and not return_blocks():
    sys.exit("mallopt is not known")
np.ones(30 << 20, np.uint8)  # glibc keeps blocks of this size from now on
before = resident()
blocks = [np.ones(4 << 20, np.uint8) for _ in range(50)]
last = np.ones(4 << 20, np.uint8)  # what is below it stays where blocks are kept
del blocks
print(resident() - before)
"""


@pytest.mark.parametrize(("kind", "least", "most"), [("returned", 0, 10), ("kept", 150, 300)])
def test_memory_of_large_blocks_goes_as_they_are_freed(kind: str, least: int, most: int) -> None:
    """In MiB, after 200 of them were freed and 4 were not."""
    child = subprocess.run(
        [sys.executable, "-c", GROWN, kind], capture_output=True, text=True, timeout=60
    )
    if "mallopt is not known" in child.stderr:
        pytest.skip("the C library is not glibc")
    assert least <= int(child.stdout) <= most, child.stderr
