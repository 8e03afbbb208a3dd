"""What the processes beside a search share, loaded once and then forked
(`mcfuser.process.forkserver`, `mcfuser.tune.listers`)."""

from mcfuser.backends import backend_of
from mcfuser.space.plan import Floats
from mcfuser.tune.expected import least_times_here
from mcfuser.tune.listers import LeastRequest


def answer(request: LeastRequest) -> list[Floats]:
    """The least times of the tiles of each plan."""
    backend = backend_of(request.device)
    return least_times_here(request, backend, request.plans)
