"""The database: jobs, which workers claim, tuned kernels, and readings of devices."""

from __future__ import annotations

from mcfuser_db.claims import ClaimStore
from mcfuser_db.kernels import KernelStore
from mcfuser_db.orders import OrderStore
from mcfuser_db.probes import ProbeStore


class Storage(OrderStore, ClaimStore, KernelStore, ProbeStore):
    """Jobs, kernels and readings in one database, which any number of processes may open.

    Its methods are in the classes that it is made of; a ClaimStore has those of a JobStore, too.
    """
