"""What is kept: jobs, tuned kernels, and the bytes of models and modules."""

from db.blobs import Blobs
from db.models import Job, Kernel
from db.store import Order, StorageError, Store

__all__ = ["Blobs", "Job", "Kernel", "Order", "StorageError", "Store"]
