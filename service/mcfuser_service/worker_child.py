"""The process of a worker that `mcfuser serve` has started (service.supervisor)."""

from __future__ import annotations

import sys

from mcfuser_service.worker import Assignment, run


def main() -> None:
    """Runs the worker of the assignment on standard input."""
    assignment = Assignment.from_json(sys.stdin.read())
    run(assignment.settings, assignment.loaded(), assignment.name)
