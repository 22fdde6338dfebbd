"""etcd, one member, as Debian packages it (etcd-server), and a client for its transactions."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpkvs.bench.peers.contender import BenchError, Promise
from gpkvs.bench.peers.ports import free_port

_START_SECONDS_MAX = 30.0
_LOAD = 100  # operations in a transaction; etcd takes 128

# The part of etcd's rpc.proto that transactions need: message, field, number, type (a message's name, or a scalar).
_FIELDS = (
    ("KeyValue", "key", 1, "bytes"),
    ("KeyValue", "mod_revision", 3, "int64"),
    ("KeyValue", "value", 5, "bytes"),
    ("RangeRequest", "key", 1, "bytes"),
    ("RangeResponse", "kvs", 2, "KeyValue*"),
    ("PutRequest", "key", 1, "bytes"),
    ("PutRequest", "value", 2, "bytes"),
    ("RequestOp", "request_range", 1, "RangeRequest"),
    ("RequestOp", "request_put", 2, "PutRequest"),
    ("ResponseOp", "response_range", 1, "RangeResponse"),
    ("Compare", "target", 2, "int32"),
    ("Compare", "key", 3, "bytes"),
    ("Compare", "mod_revision", 6, "int64"),
    ("TxnRequest", "compare", 1, "Compare*"),
    ("TxnRequest", "success", 2, "RequestOp*"),
    ("TxnResponse", "succeeded", 2, "bool"),
    ("TxnResponse", "responses", 3, "ResponseOp*"),
)
_MOD_REVISION = 2  # what a Compare looks at; its result stays 0: equal


def _messages() -> dict[str, Any]:
    """Return the classes of etcd's messages."""
    file = descriptor_pb2.FileDescriptorProto(name="etcd_txn.proto", package="etcdserverpb", syntax="proto3")
    messages: dict[str, Any] = {}
    for message, name, number, kind in _FIELDS:
        if message not in messages:
            messages[message] = file.message_type.add(name=message)
        field = messages[message].field.add(name=name, number=number)
        field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
        if kind[0].isupper():
            field.type, field.type_name = field.TYPE_MESSAGE, f".etcdserverpb.{kind.rstrip('*')}"
        else:
            field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"etcdserverpb.{name}")) for name in messages
    }


_OF = _messages()


def find_etcd() -> str | None:
    """Return the program, if it is installed."""
    return shutil.which("etcd")


class Etcd:
    """An etcd of its own; use `started`.

    It flushes its log for each batch of transactions, which is the promise ``msync``. For the promise ``process`` it
    runs with ``--unsafe-no-fsync``.

    Parameters
    ----------
    directory
        The directory of its files.
    promise
        What an acknowledged write survives.

    Attributes
    ----------
    version
        Of the program.
    """

    def __init__(self, directory: Path, promise: Promise) -> None:
        program = find_etcd()
        assert program
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = output.split()[2]
        clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        command = [program, "--data-dir", str(directory), "--log-level", "error"]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"default={peers}"]
        if promise == "process":
            command += ["--unsafe-no-fsync"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        self._channel = grpc.aio.insecure_channel(clients.removeprefix("http://"))
        self._txn = self._channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_OF["TxnResponse"].FromString,
        )

    @classmethod
    @asynccontextmanager
    async def started(cls, directory: Path, promise: Promise) -> AsyncIterator[Etcd]:
        """Start one, wait until it serves, and end it.

        Raises
        ------
        BenchError
            If it does not start.
        """
        etcd = cls(directory, promise)
        try:
            await etcd._wait_ready()
            yield etcd
        finally:
            await etcd._channel.close()
            etcd._process.terminate()
            etcd._process.wait()

    async def _wait_ready(self) -> None:
        give_up = asyncio.get_running_loop().time() + _START_SECONDS_MAX
        while True:
            try:
                await self._txn(_OF["TxnRequest"](success=[_range(b"ready")]), timeout=1)
            except grpc.RpcError as error:
                if self._process.poll() is not None or asyncio.get_running_loop().time() > give_up:
                    raise BenchError(f"etcd does not start: {error}") from None
                await asyncio.sleep(0.1)
            else:
                return

    async def load(self, pairs: Mapping[bytes, bytes]) -> None:
        """Store many keys."""
        keys = list(pairs)
        for start in range(0, len(keys), _LOAD):
            puts = [_put(key, pairs[key]) for key in keys[start : start + _LOAD]]
            await self._txn(_OF["TxnRequest"](success=puts))

    async def move(self, pair: bytes) -> None:
        """Move one from an account to another one, as gpkvs does: two reads, then two writes if nothing has changed."""
        keys = pair[:8], pair[8:]
        while True:
            read = await self._txn(_OF["TxnRequest"](success=[_range(key) for key in keys]))
            there = [response.response_range.kvs[0] for response in read.responses]
            compares = [
                _OF["Compare"](target=_MOD_REVISION, key=one.key, mod_revision=one.mod_revision) for one in there
            ]
            numbers = int(there[0].value) - 1, int(there[1].value) + 1
            puts = [_put(key, b"%d" % number) for key, number in zip(keys, numbers, strict=True)]
            if (await self._txn(_OF["TxnRequest"](compare=compares, success=puts))).succeeded:
                return


def _range(key: bytes) -> Any:
    return _OF["RequestOp"](request_range=_OF["RangeRequest"](key=key))


def _put(key: bytes, value: bytes) -> Any:
    return _OF["RequestOp"](request_put=_OF["PutRequest"](key=key, value=value))
