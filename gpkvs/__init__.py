"""gpkvs: a persistent key-value store whose batches are durable transactions, run by kernels on CPU or GPU."""

from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.config import Limits
from gpkvs.errors import GpkvsError
from gpkvs.store import Store
from gpkvs.store import open_store as open

__all__ = ["Batch", "GpkvsError", "Limits", "Op", "RequestResult", "Status", "Store", "open"]
