"""What a child process may take, and how the child gives up the rest."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from mcfuser.process.seccomp import forbid_network


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child process may take; None is no limit.

    `memory` is bytes of its own data and `processor` CPU time in seconds, of each process;
    `files` are open ones of each process; `wall` is seconds from the request to the answer, and
    is watched by the parent. Without `network` the child cannot open sockets and cannot start
    programs.
    """

    memory: int | None = None
    processor: float | None = None
    wall: float | None = None
    files: int | None = None
    network: bool = True


UNLIMITED = Limits()


def limit_this_process(limits: Limits) -> None:
    """Limits the process that calls it, for good; called before it has other threads, which would
    keep their network."""
    for kind, limit in (
        (resource.RLIMIT_DATA, limits.memory),  # address space that is not used is no harm
        (resource.RLIMIT_CPU, limits.processor),
        (resource.RLIMIT_NOFILE, limits.files),
    ):
        if limit is not None:
            hard = resource.getrlimit(kind)[1]
            most = int(limit) if hard == resource.RLIM_INFINITY else min(int(limit), hard)
            resource.setrlimit(kind, (max(1, most), hard))
    # A child that crashes leaves no image of its memory: its death is told, nobody looks at more.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if not limits.network:
        forbid_network()
