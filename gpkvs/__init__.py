"""gpkvs: a persistent key-value store whose batches are durable transactions, run by kernels on CPU or GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.config import Limits
from gpkvs.errors import GpkvsError

if TYPE_CHECKING:
    from gpkvs.store import Store
    from gpkvs.store import open_store as open

__all__ = ["Batch", "GpkvsError", "Limits", "Op", "RequestResult", "Status", "Store", "open"]

_OF_THE_STORE = {"Store": "Store", "open": "open_store"}


def __getattr__(name: str) -> Any:
    """Load the store when it is first asked for: who only uses `gpkvs.client` needs no compiled kernels."""
    if name not in _OF_THE_STORE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpkvs import store  # noqa: PLC0415

    return getattr(store, _OF_THE_STORE[name])
