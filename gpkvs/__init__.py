"""gpkvs: a persistent key-value store whose batches are durable transactions, run by kernels on CPU or GPU."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpkvs import errors
from gpkvs.errors import ForkedError, GpkvsError

if TYPE_CHECKING:
    from gpkvs.batch import Batch, Op, RequestResult, Status
    from gpkvs.columns.byte_strings import ByteStrings
    from gpkvs.config import Limits
    from gpkvs.rows import Rows
    from gpkvs.store import Store, open

    __version__: str

__all__ = [
    "Batch",
    "ByteStrings",
    "ForkedError",
    "GpkvsError",
    "Limits",
    "Op",
    "RequestResult",
    "Rows",
    "Status",
    "Store",
    "open",
]

# Loaded when they are first asked for: a client needs no compiled kernels, and a command that ends at once no NumPy.
_LATE = {
    "Batch": "gpkvs.batch:Batch",
    "ByteStrings": "gpkvs.columns.byte_strings:ByteStrings",
    "Limits": "gpkvs.config:Limits",
    "Op": "gpkvs.batch:Op",
    "RequestResult": "gpkvs.batch:RequestResult",
    "Rows": "gpkvs.rows:Rows",
    "Status": "gpkvs.batch:Status",
    "Store": "gpkvs.store:Store",
    "open": "gpkvs.store:open",
}

if not TYPE_CHECKING:  # type checkers would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("gpkvs.info").package_version()
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_elsewhere(name)}")
        module, _, attribute = _LATE[name].partition(":")
        return getattr(import_module(module), attribute)


def _elsewhere(name: str) -> str:
    """Return where a name is that somebody looked for here; nothing if nobody knows."""
    if name in ("AsyncClient", "Client", "AsyncObjects", "Objects", "RetryPolicy", "TlsCredentials"):
        return f": from gpkvs.client import {name}"
    if name.endswith("Error") and hasattr(errors, name):
        return f": from gpkvs.errors import {name}"
    return ""


def __dir__() -> list[str]:
    """Return what is public, for tab completion and `help`: also what is not loaded yet."""
    own = (name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType))
    return sorted({*own, *__all__, "__version__"})
