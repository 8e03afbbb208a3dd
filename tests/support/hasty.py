"""Few rounds of timing: for tests that ask whether a module or a kernel is right."""

from __future__ import annotations

from mcfuser.backends.cpu.backend import CpuBackend

RUNNER = "tests.support.hasty_cpu"
ROUNDS = {"_ROUNDS": 1, "_REST": 0.0, "_WARM": 0.0, "_COUNTED": 0.0}
"""What mcfuser.graph.running times by."""


def hasten() -> None:
    """Makes this process time what it checks, and has measured, no longer than it must, and build
    what it builds in little time."""
    from mcfuser.codegen.llvm import module
    from mcfuser.graph import running
    from tests.support import unoptimized

    CpuBackend.runner = RUNNER
    setattr(module, "cpu_target", unoptimized.cpu_target)  # noqa: B010
    for name, value in ROUNDS.items():
        setattr(running, name, value)
