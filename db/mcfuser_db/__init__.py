"""What is kept: jobs, tuned kernels, API keys, and the bytes of models and modules."""

from mcfuser_db.api_keys import KeyGrant, NameTaken
from mcfuser_db.blobs import Blobs, LostBlob
from mcfuser_db.database import StorageError
from mcfuser_db.full import is_full
from mcfuser_db.joblog import JobLog, LogLine
from mcfuser_db.key_text import KeyText
from mcfuser_db.keyed import KeyedRequest, KeyReused
from mcfuser_db.models import ApiKey, Job, JobEvent, KernelRow
from mcfuser_db.orders import Order
from mcfuser_db.quota import OverQuota
from mcfuser_db.store import Storage

__all__ = [
    "ApiKey", "Blobs", "Job", "JobEvent", "JobLog", "KernelRow", "KeyGrant", "KeyReused", "KeyText",
    "KeyedRequest", "LogLine", "LostBlob", "NameTaken", "Order", "OverQuota", "Storage",
    "StorageError", "is_full",
]  # fmt: skip
