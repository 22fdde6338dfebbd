"""RocksDB, through the PyPI package rocksdict, set up for look-ups of single keys."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpkvs.bench.engine.workload import Columns, Workload
from gpkvs.bench.peers.contender import Promise, need_extra, wait_until_tidy
from gpkvs.bench.peers.lmdb_peer import split

_CACHE_MIB = 1024
_AT_WORK = ("num-running-flushes", "num-running-compactions", "mem-table-flush-pending", "compaction-pending")


class RocksDb:
    """A RocksDB database; arguments as of `EmbeddedGpkvs`.

    One WriteBatch a batch, with the write-ahead log on; reads by ``multi_get``. ``optimize_for_point_lookup`` (Bloom
    filters, a hash index in blocks, 1 GiB of block cache), no compression, as many background threads as processors.
    After loading it is flushed and compacted.
    """

    name = "RocksDB"

    def __init__(self, directory: Path, workload: Workload, promise: Promise, sets_max: int) -> None:
        del workload, sets_max
        self._rocksdict = rocksdict = need_extra("rocksdict")
        self.version = f"Python package rocksdict {version('rocksdict')}"
        options = rocksdict.Options(raw_mode=True)
        options.increase_parallelism(2)
        options.optimize_for_point_lookup(_CACHE_MIB)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        more = self._set(options)
        self._db = rocksdict.Rdict(str(directory), options)
        write = rocksdict.WriteOptions()
        write.sync = promise == "msync"
        self._db.set_write_options(write)
        self.settings = (
            f"WAL on, sync={write.sync}, optimize_for_point_lookup({_CACHE_MIB}), increase_parallelism(2), "
            f"no compression{more}"
        )

    def _set(self, options: Any) -> str:
        """Set more options; return them in words."""
        del options
        return ""

    def load(self, workload: Workload) -> None:
        """Store all records in the order of their keys, then compact."""
        for columns in workload.loads("sorted"):
            self.set(self.prepare_set(columns))
        self._db.flush()
        self._db.compact_range(None, None)

    def prepare_set(self, columns: Columns) -> list[tuple[bytes, bytes]]:
        """Return pairs of bytes. `set` makes the WriteBatch in its own time, because that encodes the records."""
        return list(zip(split(columns.keys), split(columns.values), strict=True))

    def set(self, prepared: list[tuple[bytes, bytes]]) -> None:
        """Store a batch as one transaction."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in prepared:
            put(key, value)
        self._db.write(batch)

    def set_one(self, key: bytes, value: bytes) -> None:
        """Store one record as one transaction."""
        self._db.put(key, value)

    def get_one(self, key: bytes) -> bytes | None:
        """Read one record."""
        value: bytes | None = self._db.get(key)
        return value

    def prepare_get(self, columns: Columns) -> list[bytes]:
        """Return keys as bytes."""
        return split(columns.keys)

    def get(self, prepared: list[bytes]) -> list[Any]:
        """Read a batch."""
        result: list[Any] = self._db.get(prepared)
        return result

    def values(self, result: list[bytes]) -> bytes:
        """Join the values."""
        return b"".join(result)

    def delete(self, keys: list[bytes]) -> None:
        """Delete keys as one transaction."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self._db.write(batch)

    def is_tidying(self) -> bool:
        """Whether it writes a memtable to a file, merges files, or is about to."""
        return any(self._db.property_int_value(f"rocksdb.{name}") for name in _AT_WORK)

    def settle(self) -> None:
        """Return when it has been at rest for a moment."""
        wait_until_tidy(self)

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class BlobDb(RocksDb):
    """RocksDB that keeps values in files of their own, and collects the garbage in them."""

    name = "BlobDB"

    def _set(self, options: Any) -> str:
        options.set_enable_blob_files(val=True)
        options.set_min_blob_size(0)
        options.set_enable_blob_gc(val=True)
        return ", enable_blob_files, min_blob_size=0, enable_blob_gc with RocksDB's own cutoffs"
