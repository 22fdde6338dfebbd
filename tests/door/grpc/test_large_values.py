"""Values so large that the native door answers with the engine's own copy of them."""

from __future__ import annotations

import random

import numpy as np

from gpkvs.batch import Status
from gpkvs.proto.v1 import kv_pb2
from tests.server.wire import EXISTS, GET, Operation, batch, values_of
from tests.serving import StartServer


def test_large_values_come_whole(start_server: StartServer) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng, server = random.Random(seed), start_server()
    sizes = {b"k%d" % size: size for size in (0, 4095, 4096, 4097, 20_000, 1_000_000)}
    values = {key: rng.randbytes(size) for key, size in sizes.items()}
    versions = {key: server.kv.Set(kv_pb2.SetRequest(key=key, value=value)).version for key, value in values.items()}
    large = [key for key, size in sizes.items() if size >= 4096]
    for key, value in values.items():
        assert server.kv.Get(kv_pb2.GetRequest(key=key)) == kv_pb2.GetResponse(
            found=True, value=value, version=versions[key]
        )
    for count in (1, 2, 3, 4, 5, 6, 7, 100, 300):  # of some there is room beside the values, of others not
        keys = [rng.choice(large) for _ in range(count)]
        operations: list[Operation] = [
            (rng.choice((GET, EXISTS)) if i < 5 else EXISTS, key) for i, key in enumerate(keys)
        ]
        answered = server.kv.Batch(batch(operations, id=rng.getrandbits(64)))
        assert values_of(answered) == [values[key] for op, key, *_ in operations if op == GET]
        assert answered.status == bytes([Status.OK] * count)
        assert np.frombuffer(answered.versions, "<u8").tolist() == [versions[key] for key in keys]
    assert server.metric("gpkvs_memory_bytes", kind="responses") == 0
