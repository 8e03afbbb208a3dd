"""What is kept: jobs, tuned kernels, and the bytes of models and modules."""

from mcfuser_db.blobs import Blobs, LostBlob
from mcfuser_db.full import is_full
from mcfuser_db.joblog import JobLog, LogLine
from mcfuser_db.keyed import KeyedRequest, KeyReused
from mcfuser_db.models import Job, KernelRow
from mcfuser_db.store import Order, Storage, StorageError

__all__ = [
    "Blobs", "Job", "JobLog", "KernelRow", "KeyReused", "KeyedRequest", "LogLine", "LostBlob",
    "Order", "Storage", "StorageError", "is_full",
]  # fmt: skip
