"""Few rounds of timing: for tests that ask whether a module or a kernel is right."""

from __future__ import annotations

from mcfuser.backends.cpu.backend import CpuBackend

RUNNER = "tests.support.hasty_cpu"


def hasten() -> None:
    """Makes this process time what it checks, and has measured, no longer than it must."""
    from mcfuser.graph import running

    CpuBackend.runner = RUNNER
    running._ROUNDS, running._REST, running._WARM, running._COUNTED = 1, 0.0, 0.0, 0.0
