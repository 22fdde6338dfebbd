"""Clients that write as long as their server lives, and remember what they sent and what was answered."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Sequence

import grpc

from gpkvs.batch import Op, Status
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.drill.clients import batch_request
from tests.watched.record import Request, State, Written

KEYS = 60  # of each writer, beside those that it sets once
_SECONDS_MAX = 60
# In one batch: more than a message of a watch has, so that it comes in parts.
_LARGE_BYTES, _LARGE_KEYS = 20_000, 20
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


class Writers:
    """All writers of a store, through all lives of its server.

    Parameters
    ----------
    count
        How many.
    seed
        Of their choices.
    large_share
        Of the requests, those whose entry comes in parts.

    Attributes
    ----------
    written
        What each did.
    problems
        Answers that cannot be.
    """

    def __init__(self, count: int, seed: str, large_share: float) -> None:
        self.written = [Written(number) for number in range(count)]
        self.problems: list[str] = []
        self._random = [random.Random(f"{seed} {number}") for number in range(count)]
        self._large_share = large_share
        self._stops = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, target: str) -> None:
        """Have all write, each until the server is gone or `stop`."""
        self._stops.clear()
        self._threads = [threading.Thread(target=self._work, args=(target, one)) for one in self.written]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Have all end behind an answer; each has one, or the server is gone."""
        self._stops.set()
        self.join()

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self._threads:
            thread.join()

    @property
    def requests(self) -> int:
        """How many were sent."""
        return sum(len(one.requests) for one in self.written)

    def settle(self, target: str) -> None:
        """Ask a server that was started again for what nobody answered."""
        with grpc.insecure_channel(target, _OPTIONS) as channel:
            stub = kv_pb2_grpc.KVStub(channel)
            for one in self.written:
                if keys := one.undecided:
                    self.problems += filter(None, [one.settle(_get(stub, keys))])

    def _work(self, target: str, one: Written) -> None:
        try:
            with grpc.insecure_channel(target, _OPTIONS) as channel:
                stub = kv_pb2_grpc.KVStub(channel)
                while True:  # once at least
                    request = Request(time.monotonic(), self._effects(one))
                    one.requests.append(request)
                    versions = self._send(stub, request)
                    one.acknowledge(request, versions, time.monotonic())
                    if self._stops.is_set():
                        return
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                self.problems.append(f"a writer heard {error.code().name}: {error.details()}")

    def _effects(self, one: Written) -> dict[bytes, bytes | None]:
        """Choose what a request does. No two do the same: each has a value, or deletes what is never there again."""
        chance, number = self._random[one.number], len(one.requests)

        def value(least: int = 0) -> bytes:
            return b"%d.%d " % (one.number, number) + bytes(max(least, chance.randrange(200)))

        if chance.random() < self._large_share:
            return {b"%d-large %d" % (one.number, at): value(_LARGE_BYTES) for at in range(_LARGE_KEYS)}
        once = [key for key, row in one.held.items() if row and key.startswith(b"%d-once" % one.number)]
        if once and chance.random() < 0.2:
            return dict.fromkeys(chance.sample(once, min(len(once), chance.choice((1, 3)))))
        keys = [b"%d-%d" % (one.number, at) for at in chance.sample(range(KEYS), chance.choice((0, 0, 0, 5, 20)))]
        effects = {key: None if one.held.get(key) and chance.random() < 0.2 else value() for key in keys}
        last = b"%d-once %d" % (one.number, number) if chance.random() < 0.3 else b"%d-%d" % (one.number, KEYS)
        return effects | {last: value()}

    def _send(self, stub: kv_pb2_grpc.KVStub, request: Request) -> dict[bytes, int]:
        """Send a request; return the versions that it gave."""
        [key, *more], [value, *_] = request.effects, request.effects.values()
        if more:
            response = stub.Batch(batch_request(request.operations, 0), timeout=_SECONDS_MAX)
            given = struct.unpack(f"<{1 + len(more)}Q", response.versions)
            if response.status != bytes(1 + len(more)):
                self.problems.append(f"a batch of {key!r} has the status {response.status!r}")
            return {key: version for key, version in zip(request.effects, given, strict=True) if request.effects[key]}
        if value is not None:
            return {key: stub.Set(kv_pb2.SetRequest(key=key, value=value), timeout=_SECONDS_MAX).version}
        if not stub.Delete(kv_pb2.DeleteRequest(key=key), timeout=_SECONDS_MAX).found:
            self.problems.append(f"a DELETE did not find {key!r}")
        return {}


def _get(stub: kv_pb2_grpc.KVStub, keys: Sequence[bytes]) -> State:
    response = stub.Batch(batch_request([(Op.GET, key, b"") for key in keys], 0), timeout=_SECONDS_MAX)
    lengths = struct.unpack(f"<{len(keys)}I", response.value_lengths)
    versions = struct.unpack(f"<{len(keys)}Q", response.versions)
    found: State = {}
    at = 0
    for key, status, length, version in zip(keys, response.status, lengths, versions, strict=True):
        found[key] = (response.values[at : at + length], version) if status == Status.OK else None
        at += length
    return found
