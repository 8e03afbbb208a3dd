"""Few rounds of timing: for tests that ask whether a module or a kernel is right."""

from __future__ import annotations

from mcfuser.backends.cpu.backend import CpuBackend

RUNNER = "tests.support.hasty_cpu"
ROUNDS = {"_ROUNDS": 1, "_REST": 0.0, "_WARM": 0.0, "_COUNTED": 0.0}
"""What mcfuser.graph.running times by."""


def hasten() -> None:
    """Makes this process time what it checks, and has measured, no longer than it must."""
    from mcfuser.graph import running

    CpuBackend.runner = RUNNER
    for name, value in ROUNDS.items():
        setattr(running, name, value)
