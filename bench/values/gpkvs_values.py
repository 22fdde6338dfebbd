"""gpkvs itself, embedded, with large values: a store of the default sizes, which grows."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.values.options import MIX_BYTES_MAX, ValuesOptions
from gpkvs.config import Limits, StoreConfig
from gpkvs.info import package_version
from gpkvs.store import Store

OWN = "gpkvs"


class GpkvsValues:
    """A store of gpkvs.

    Parameters
    ----------
    directory
        An empty directory; it decides the promise.
    options
        Its format, and the largest size.
    """

    name = OWN

    def __init__(self, directory: Path, options: ValuesOptions) -> None:
        self.version = package_version()
        limits = Limits(value_bytes_max=value_bytes_max(options))
        self.store = Store(directory, StoreConfig(store_format=options.store_format, limits=limits))
        self._into = memoryview(bytearray(self.store.limits.value_bytes_max))
        info = self.store.info()
        self.settings = f"domain {info.domain}, commit {info.commit}, format {info.store_format}"

    def set_one(self, key: bytes, value: bytes) -> None:
        """Store one value as one transaction."""
        self.store.set(key, value)

    def get_one(self, key: bytes) -> memoryview:
        """Read one value, into memory that all share."""
        return self._into[: self.store.get_into(key, self._into) or 0]

    def settle(self) -> None:
        """Do all of the work that batches left behind."""
        while self.store.maintain():
            pass

    def phases(self) -> dict[str, float]:
        """Return the seconds that the engine has spent in each phase."""
        return dict(self.store.meter.phase_seconds)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def value_bytes_max(options: ValuesOptions) -> int:
    """Return the limit that a store is asked for: that of the largest value of any part."""
    return max(*options.sizes, MIX_BYTES_MAX)


def value_bytes_taken(options: ValuesOptions, directory: Path) -> int:
    """Return how large the values may be that a store takes and returns, whatever it is asked for."""
    with TemporaryDirectory(dir=directory, prefix="gpkvs-bench-") as folder:
        own = GpkvsValues(Path(folder), options)
        try:
            return min(own.store.limits.value_bytes_max, own.store.limits.result_bytes_max)
        finally:
            own.close()
