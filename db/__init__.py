"""What is kept: jobs, tuned kernels, and the bytes of models and modules."""

from db.blobs import Blobs, LostBlob
from db.full import is_full
from db.models import Job, Kernel
from db.store import Order, StorageError, Store

__all__ = ["Blobs", "Job", "Kernel", "LostBlob", "Order", "StorageError", "Store", "is_full"]
