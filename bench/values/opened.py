"""Opens embedded stores for large values, each in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.engine.workload import Shape, Workload
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.peers.rocksdb_peer import BlobDb
from gpkvs.bench.values.gpkvs_values import GpkvsValues
from gpkvs.bench.values.options import ValuesOptions, ValuesPeer
from gpkvs.bench.values.payload import KEY_BYTES, Payload
from gpkvs.bench.values.plain_files import PlainFiles
from gpkvs.bench.values.value_store import ValueStore


@contextmanager
def opened(
    options: ValuesOptions, directory: Path, promise: Promise, payload: Payload
) -> Iterator[list[tuple[ValueStore, Path]]]:
    """Open gpkvs and the chosen peers, all but redis; close them and remove their directories."""
    with ExitStack() as stack:

        def new_directory() -> Path:
            return Path(stack.enter_context(TemporaryDirectory(dir=directory, prefix="gpkvs-bench-")))

        found: list[tuple[ValueStore, Path]] = []
        path = new_directory()
        found.append((GpkvsValues(path, options), path))
        stack.callback(found[-1][0].close)
        for peer in options.peers:
            if peer != "redis":
                path = new_directory()
                found.append((_peer(peer, path, promise, payload), path))
                stack.callback(found[-1][0].close)
        yield found


def _peer(peer: ValuesPeer, path: Path, promise: Promise, payload: Payload) -> ValueStore:
    if peer == "files":
        return PlainFiles(path, promise)
    shape = Shape("values", KEY_BYTES, max(map(len, payload.values)))
    workload = Workload(shape, len(payload), batch=1)
    return Lmdb(path, workload, promise, 0) if peer == "lmdb" else BlobDb(path, workload, promise, 0)
