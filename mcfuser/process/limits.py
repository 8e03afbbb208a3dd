"""The limits of a child process, which it sets itself."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from mcfuser.process.seccomp import forbid_network


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a child process; None is no limit.

    `memory` (bytes of data), `processor` (seconds of CPU time) and `files` (open at once) hold for
    each process. `wall` is the seconds from the request to the answer; the parent checks it.
    Without `network` the child can neither open sockets nor start programs.
    """

    memory: int | None = None
    processor: float | None = None
    wall: float | None = None
    files: int | None = None
    network: bool = True


UNLIMITED = Limits()


def limit_this_process(limits: Limits) -> None:
    """Sets limits of the calling process, which cannot be lifted. It must be called before other
    threads are started: they would keep the network."""
    for kind, limit in (
        (resource.RLIMIT_DATA, limits.memory),  # data only: unused address space does no harm
        (resource.RLIMIT_CPU, limits.processor),
        (resource.RLIMIT_NOFILE, limits.files),
    ):
        if limit is not None:
            hard = resource.getrlimit(kind)[1]
            most = int(limit) if hard == resource.RLIM_INFINITY else min(int(limit), hard)
            resource.setrlimit(kind, (max(1, most), hard))
    # No core dumps: the parent reports the death, and nobody would look at them.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if not limits.network:
        forbid_network()
