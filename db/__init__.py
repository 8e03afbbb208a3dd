"""What is kept: jobs, tuned kernels, and the bytes of models and modules."""

from db.blobs import Blobs, LostBlob
from db.full import is_full
from db.models import Job, KernelRow
from db.store import Order, Storage, StorageError

__all__ = ["Blobs", "Job", "KernelRow", "LostBlob", "Order", "Storage", "StorageError", "is_full"]
