"""The CPU's runner with few and short rounds of timing: for tests that ask whether a kernel is
right."""

from __future__ import annotations

from mcfuser.backends.cpu import runner


def open_device(name: str) -> runner.CpuRunner:
    """In a process of its own, whose module is changed."""
    runner.MOST_ROUNDS, runner.FEW_MOST_ROUNDS = runner.ROUNDS, runner.FEW_ROUNDS
    runner.ROUND = runner.GROUP
    return runner.open_device(name)
