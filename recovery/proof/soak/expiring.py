"""A client of a soak whose keys expire: it knows until when each must be there, and from when on it may not be."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import grpc

from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

EXPIRING = "expiring"
_CALL_SECONDS_MAX = 30.0
_KEYS = 60
_TTLS_S = (0.05, 0.5, 3.0, 30.0)
_SET_SHARE = 0.3
_SLACK_S = 0.02  # the server counts milliseconds, and reads its clock once for a batch


@dataclass(frozen=True)
class Lease:
    """A key that was written: its value, when it may be gone at the earliest, and when it must be gone."""

    value: bytes
    may_s: float
    must_s: float


@dataclass
class ExpiringKeys:
    """Writes keys with a time to live to a table of its own, and reads them before and after it.

    Times are of the machine's clock, which is also the server's.

    Parameters
    ----------
    seed
        Of its choices.

    Attributes
    ----------
    problems
        Keys that were served too long, or not long enough.
    seen_alive, seen_expired
        Reads of keys that had to be there, and of those that had to be gone.
    """

    seed: str
    problems: list[str] = field(default_factory=list)
    seen_alive: int = 0
    seen_expired: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._leases: dict[bytes, Lease] = {}
        self._written = 0

    async def turn(self, kv: kv_pb2_grpc.KVStub) -> None:
        """Write or read a key; the first turns write one for each time to live."""
        key = b"expiring-%d" % self._random.randrange(_KEYS)
        if self._written < len(_TTLS_S) or self._random.random() < _SET_SHARE:
            await self._write(kv, key, _TTLS_S[self._written % len(_TTLS_S)])
        else:
            await self._read(kv, key)

    async def settle(self, kv: kv_pb2_grpc.KVStub) -> int:
        """Read all keys, of which one has expired meanwhile and one lives; return how many there are."""
        await self._write(kv, b"long", _TTLS_S[-1])
        await self._write(kv, b"short", _TTLS_S[0])
        await asyncio.sleep(_TTLS_S[0] + 2 * _SLACK_S)
        for key in list(self._leases):
            await self._read(kv, key)
        return len(self._leases)

    async def _write(self, kv: kv_pb2_grpc.KVStub, key: bytes, ttl_s: float) -> None:
        self._written += 1
        value = b"%d-" % self._written + b"v" * self._random.randrange(200)
        self._leases.pop(key, None)  # not known, if the response is lost
        request = kv_pb2.SetRequest(table=EXPIRING, key=key, value=value, ttl_ms=round(1000 * ttl_s))
        sent_s = time.time()
        try:
            await kv.Set(request, timeout=_CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return
        self._leases[key] = Lease(value, sent_s + ttl_s - _SLACK_S, time.time() + ttl_s + _SLACK_S)

    async def _read(self, kv: kv_pb2_grpc.KVStub, key: bytes) -> None:
        lease, sent_s = self._leases.get(key), time.time()
        response = await kv.Get(kv_pb2.GetRequest(table=EXPIRING, key=key), timeout=_CALL_SECONDS_MAX)
        if lease:
            self.judge(key, lease, response, sent_s, time.time())

    def judge(self, key: bytes, lease: Lease, response: kv_pb2.GetResponse, sent_s: float, came_s: float) -> None:
        """Note what a read has shown."""
        if not response.found:
            if came_s < lease.may_s:
                self.problems.append(f"{key!r} is gone {lease.may_s - came_s:.3f} s before it may be")
            self.seen_expired += sent_s > lease.must_s
        elif sent_s > lease.must_s:
            self.problems.append(f"{key!r} is there {sent_s - lease.must_s:.3f} s after it must be gone")
        elif response.value != lease.value:
            self.problems.append(f"{key!r} has {response.value[:12]!r}, not {lease.value[:12]!r}")
        else:
            self.seen_alive += came_s < lease.may_s
