"""Streams of the native door against a model: what the engine does and what Python does come in one order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

from gpkvs.batch import Status
from gpkvs.proto.v1 import kv_pb2
from tests.server.wire import APPEND, DELETE, EXISTS, GET, SET, TTL_MS_MAX, Operation, batch, u64, values_of
from tests.serving import StartServer

OK, NOT_FOUND = int(Status.OK), int(Status.NOT_FOUND)
INVALID, UNKNOWN = 3, 5
MESSAGES = 300


class Model:
    """Requests of one stream, on keys of its own, and the responses that they must have."""

    def __init__(self, name: bytes, rng: random.Random) -> None:
        self._keys = [name + b"%d" % i for i in range(6)]
        self._rng = rng
        self._stored: dict[bytes, bytes] = {}
        self.expected: list[tuple[int, bytes, list[bytes]]] = []  # code, statuses, values

    def requests(self) -> Iterator[kv_pb2.BatchRequest]:
        rng = self._rng
        for number in range(MESSAGES):
            if rng.random() < 0.02:
                time.sleep(0.01)
            kind = rng.choices(["plain", "long", "append", "wrong", "unknown"], [20, 3, 3, 1, 1])[0]
            operations = self._operations(APPEND if kind == "append" else SET)
            if kind == "wrong":
                self.expected.append((INVALID, b"", []))
                yield batch([*operations, (GET, b"")], id=number)
            elif kind == "unknown":
                self.expected.append((UNKNOWN, b"", []))
                yield batch(operations, id=number, table="none")
            else:
                self.expected.append((0, *self._run(operations)))
                # For 30,000 years, and the door hands it to Python.
                ttls = u64(*[TTL_MS_MAX + 1] * len(operations)) if kind == "long" else b""
                yield batch(operations, id=number, ttls=ttls)

    def _operations(self, write: int) -> list[Operation]:
        rng, operations = self._rng, list[Operation]()
        for _ in range(rng.randint(1, 5)):
            key = rng.choice(self._keys)
            op = rng.choice((GET, GET, write, write, DELETE, EXISTS))
            operations.append((op, key, rng.randbytes(rng.choice((0, 5, 700)))) if op == write else (op, key))
        return operations

    def _run(self, operations: list[Operation]) -> tuple[bytes, list[bytes]]:
        statuses, values = [], []
        for op, key, *value in operations:
            is_there = key in self._stored
            if op == GET:
                values.append(self._stored.get(key, b""))
            elif op == SET:
                self._stored[key] = value[0]
            elif op == APPEND:
                self._stored[key] = self._stored.get(key, b"") + value[0]
            elif op == DELETE:
                self._stored.pop(key, None)
            statuses.append(OK if is_there or op in (SET, APPEND) else NOT_FOUND)
        return bytes(statuses), values


def test_plain_messages_and_others_keep_their_order(start_server: StartServer) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    server = start_server("--stream-requests-max", random.Random(seed).choice(["2", "64"]))
    models = [Model(b"%d-" % number, random.Random(seed + number)) for number in range(3)]
    failures: list[str] = []

    def run(model: Model) -> None:
        try:
            responses = list(server.kv.Pipeline(model.requests(), timeout=60))
            assert [response.id for response in responses] == list(range(MESSAGES))
            found = [
                (response.code, response.status, values_of(response)) if not response.code else (response.code, b"", [])
                for response in responses
            ]
            for number, (got, expected) in enumerate(zip(found, model.expected, strict=True)):
                assert got == expected, f"message {number}"
        except Exception as error:
            failures.append(repr(error))
            raise

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert server.metric("gpkvs_memory_bytes", kind="requests") == 0
