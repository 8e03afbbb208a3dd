"""A worker that `mcfuser serve` has started; see `service.supervisor`."""

from __future__ import annotations

import sys

from service.worker import Assignment, run


def main() -> None:
    """Does the assignment that standard input holds."""
    assignment = Assignment.from_json(sys.stdin.read())
    run(assignment.settings, assignment.loaded(), assignment.name)
